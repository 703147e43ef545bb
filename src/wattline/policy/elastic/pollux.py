"""How many GPUs and what batch size for whom, so that all are sped up alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats
from wattline.errors import ConfigError
from wattline.policy.elastic.capacity import Offer, granted, grow, offer

_NOTHING = 1e-3  # what no GPUs count as a speed-up, as in the authors' simulator


@dataclass(frozen=True)
class Pollux:
    """The largest power mean of all jobs' speed-ups (Qiao et al., OSDI 2021, "Pollux").

        (1/J · Σ speedup_j^p)^(1/p),    speedup_j(a) = goodput_j(a) / goodput_j(an equal share of the GPUs),

    with p = *fairness*: 1 counts the sum, −1 is the authors' choice, less favours who is worst off. The
    batch size is the one with the best goodput, for jobs that allow it. Where a job would be restarted,
    its speed-up is multiplied by (T − R · *restart_s*) / (T + *restart_s*), T its age and R its restarts so
    far. Asked every *interval_s* as long as these factors keep somebody from a better share.
    *Deviates:* steps to the next powers of two or the size asked for, best gain per GPU first, instead of a
    genetic algorithm; decides also when jobs come and go, not every *interval_s* only; a first start counts
    as no restart; no interference avoidance (where jobs go is the placer's); who runs stays on its kind of
    GPU.
    """

    interval_s: float = 60.0
    fairness: float = -1.0
    restart_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.interval_s >= 1:
            raise ConfigError(f"interval_s must be at least 1, got {self.interval_s}")
        if not -100 <= self.fairness <= 1:
            raise ConfigError(f"fairness must be from -100 to 1, got {self.fairness}")
        if not 0 <= self.restart_s < math.inf:
            raise ConfigError(f"restart_s must be at least 0 and finite, got {self.restart_s}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """The plan; see `wattline.policy.chain.Stage`. Of an earlier *plan* only who is in it counts."""
        offers = offer(snapshot, models, plan, batches=True)
        speedup = _speedups(offers)
        nobody = np.empty(0, dtype=np.int64)
        nothing = np.full(len(speedup), self._worth(0.0))
        restarts = self._restarts(snapshot, offers)
        level = grow(offers, nobody, self._worth(speedup * restarts), nothing)
        tick_s = math.inf
        if restarts.min(initial=1.0) < 1.0:
            best = grow(offers, nobody, self._worth(speedup), nothing)
            if not np.array_equal(best, level):
                tick_s = snapshot.now_s + self.interval_s
        return granted(snapshot, offers, level, plan, tick_s=tick_s)

    def _worth(self, speedup: Floats | float) -> Floats:
        """What grows with the power mean when it is summed over jobs."""
        if self.fairness == 0:
            return np.log(speedup + _NOTHING)
        return np.asarray((speedup + _NOTHING) ** self.fairness / self.fairness)

    def _restarts(self, snapshot: Snapshot, offers: Offer) -> Floats:
        """The factor by which each row's speed-up at each size counts."""
        queue = snapshot.queue
        age_s = snapshot.now_s - snapshot.jobs.submit_s[queue.job]
        lost_s = queue.restarts * self.restart_s
        factor = np.maximum(age_s - lost_s, 0.0) / np.maximum(age_s + self.restart_s, 1.0)
        factor[np.isnan(queue.first_s)] = 1.0
        keeps = offers.menu.gpus[offers.sort] == offers.held[:, None]
        return np.where(keeps, 1.0, factor[:, None])


def _speedups(offers: Offer) -> Floats:
    """Goodput of each row at each size, relative to an equal share of the GPUs of its kind."""
    ways, sort = offers.menu, offers.sort
    gpus, speed = ways.gpus[sort], ways.speed[sort, :, -1]
    crowd = np.bincount(offers.pool[offers.pool >= 0], minlength=len(offers.room))
    share = (offers.room / np.maximum(crowd, 1))[offers.pool]
    fair = np.maximum.accumulate(speed, axis=1)  # more GPUs than are good for it need not be used
    rows = np.arange(len(sort))
    below = np.maximum((gpus <= share[:, None]).sum(axis=1) - 1, 0)
    above = np.minimum(below + 1, gpus.shape[1] - 1)
    low, high = gpus[rows, below], gpus[rows, above]
    part = np.clip((share - low) / np.maximum(high - low, 1), 0.0, 1.0)
    at_share = fair[rows, below] + part * (fair[rows, above] - fair[rows, below])
    at_share *= np.minimum(share / gpus[:, 0], 1.0)  # less than its least size: so much of the time
    return np.asarray(speed / np.maximum(at_share, 1e-300)[:, None])
