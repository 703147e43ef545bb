"""Pollux: numbers of GPUs and batch sizes for the largest mean speed-up of all jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import (
    QUEUE_FIRST_START_S,
    QUEUE_HELD_GPUS,
    QUEUE_JOB,
    QUEUE_LAST_GPUS,
    QUEUE_RESTARTS,
)
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.errors import ConfigError
from wattline.jit import F1, F2, F3, FLOAT, I1, I2, kernel
from wattline.policy.elastic.capacity import Capacity, allocate_greedily, build_capacity, plan_from_sizes

_NONE_FIRST = np.empty(0, dtype=np.int64)
_NOTHING = 1e-3  # speed-up that no GPUs count as, as in the authors' simulator


@dataclass(frozen=True)
class Pollux:
    """The largest power mean of all jobs' speed-ups (Qiao et al., OSDI 2021, "Pollux").

        (1/J · Σ speedup_j^p)^(1/p),    speedup_j(a) = goodput_j(a) / goodput_j(an equal share of the GPUs),

    with p = *fairness*: 1 counts the sum, −1 is the authors' choice, less favours the worst-off jobs. The
    batch size is that with the best goodput, for jobs that allow it. Where a job would be restarted, its
    speed-up is multiplied by (T − R · *restart_s*) / (T + *restart_s*), T its age and R its restarts so far;
    work that a stop would lose adds to the last *restart_s*.
    Decides again every *interval_s* as long as these factors keep a job from a better share.
    With *explore* a job has at most so many times the GPUs that it has had at most so far, and one at first:
    the original knows the speed of a job only where it has run, and explores by doubling (2). 0: it is known.
    *Deviates:* steps to the next powers of two or the requested size, best gain per GPU first, instead of a
    genetic algorithm; decides also when jobs come and go, not every *interval_s* only; a first start counts
    as no restart; no interference avoidance (the placer chooses the nodes); a running job stays on its kind
    of GPU.
    """

    interval_s: float = 60.0
    fairness: float = -1.0
    restart_s: float = 30.0
    explore: float = 0.0

    def __post_init__(self) -> None:
        if not self.interval_s >= 1:
            raise ConfigError(f"interval_s must be at least 1, got {self.interval_s}")
        if not -100 <= self.fairness <= 1:
            raise ConfigError(f"fairness must be from -100 to 1, got {self.fairness}")
        if not 0 <= self.restart_s < math.inf:
            raise ConfigError(f"restart_s must be at least 0 and finite, got {self.restart_s}")
        if self.explore != 0 and not 1 < self.explore < math.inf:
            raise ConfigError(f"explore must be 0, or above 1 and finite, got {self.explore}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`.

        Of an earlier *plan* only the choice of jobs counts.
        """
        capacity = build_capacity(snapshot, models, plan, batches=True, by_precedence=True)
        configs = capacity.configs
        discounted, speedup, is_discounted = _compute_speedups(
            snapshot.queue.block,
            snapshot.jobs.submit_s,
            snapshot.lost_work_s,
            snapshot.now_s,
            self.restart_s,
            capacity.job_class,
            capacity.pool,
            capacity.room,
            configs.gpus,
            configs.speed,
        )
        nothing = np.full(len(speedup), self._value(0.0))
        note = most_gpus = None
        if self.explore:
            note = most_gpus = _record_most_gpus(snapshot)
            speedup = self._limit_to_explored(capacity, speedup, most_gpus.gpus)
            discounted = self._limit_to_explored(capacity, discounted, most_gpus.gpus)
        size = allocate_greedily(capacity, _NONE_FIRST, self._value(discounted), nothing)
        next_s = math.inf
        if is_discounted:
            best = allocate_greedily(capacity, _NONE_FIRST, self._value(speedup), nothing)
            if not np.array_equal(best, size):
                next_s = snapshot.now_s + self.interval_s
        if most_gpus is not None and self._wants_to_explore(capacity, size, most_gpus.gpus):
            next_s = snapshot.now_s + self.interval_s
        chosen = plan_from_sizes(snapshot, capacity, size, plan, next_decision_s=next_s)
        return chosen if note is None else replace(chosen, note=note)

    def _limit_to_explored(self, capacity: Capacity, speedup: Floats, most: Ints) -> Floats:
        """Return *speedup* with 0 at sizes that a job may not have yet; its least size is always allowed."""
        gpus = capacity.configs.gpus[capacity.job_class]
        allowed = np.maximum(self.explore * most, gpus[:, 0])
        return np.where(gpus <= allowed[:, None], speedup, 0.0)

    def _wants_to_explore(self, capacity: Capacity, size: Ints, most: Ints) -> bool:
        """Return whether a job runs on more GPUs than before, so that it may soon have more."""
        runs = np.flatnonzero(size >= 0)
        return bool((capacity.configs.gpus[capacity.job_class[runs], size[runs]] > most[runs]).any())

    def _value(self, speedup: Floats | float) -> Floats:
        """Return a job's term of the sum that grows with the power mean."""
        if self.fairness == 0:
            return np.log(speedup + _NOTHING)
        return np.asarray((speedup + _NOTHING) ** self.fairness / self.fairness)


@dataclass(frozen=True, eq=False)
class _MostGpus:
    """Note for the next decision: the most GPUs that each job has had so far."""

    job: Ints  # rows of `Jobs`, ascending
    gpus: Ints


def _record_most_gpus(snapshot: Snapshot) -> _MostGpus:
    """Return the most GPUs that each job of the queue has had; 0: it has not run."""
    job, gpus = snapshot.queue.job, snapshot.queue.block[QUEUE_LAST_GPUS].astype(np.int64)
    before = snapshot.note
    if isinstance(before, _MostGpus) and len(before.job):
        at = np.minimum(np.searchsorted(before.job, job), len(before.job) - 1)
        gpus = np.where(before.job[at] == job, np.maximum(gpus, before.gpus[at]), gpus)
    return _MostGpus(job, gpus)


@kernel(F2, F1, F1, FLOAT, FLOAT, I1, I1, I1, I2, F3)
def _compute_speedups(
    block: Floats,
    submit_s: Floats,
    lost_s: Floats,
    now_s: float,
    restart_s: float,
    job_class: Ints,
    pool: Ints,
    room: Ints,
    gpus: Ints,
    speeds: Floats,
) -> tuple[Floats, Floats, bool]:
    """Return the goodput of each row at each size, relative to an equal share of the GPUs of its kind.

    The first table is multiplied by the factor that accounts for a restart, the second is not; then whether
    any factor is below 1.
    """
    queued, sizes, last = len(job_class), gpus.shape[1], speeds.shape[2] - 1
    crowd = np.zeros(len(room), dtype=np.int64)
    for i in range(queued):
        if pool[i] >= 0:
            crowd[pool[i]] += 1
    discounted = np.empty((queued, sizes))
    speedup = np.empty((queued, sizes))
    fair = np.empty(sizes)
    is_discounted = False
    for i in range(queued):
        c = job_class[i]
        share = room[pool[i]] / max(crowd[pool[i]], 1)
        below = -1
        for s in range(sizes):  # GPUs that slow a job down need not be used
            fair[s] = speeds[c, s, last] if s == 0 else max(fair[s - 1], speeds[c, s, last])
            below += gpus[c, s] <= share
        below = max(below, 0)
        above = min(below + 1, sizes - 1)
        part = (share - gpus[c, below]) / max(gpus[c, above] - gpus[c, below], 1)
        part = min(max(part, 0.0), 1.0)
        at_share = fair[below] + part * (fair[above] - fair[below])
        at_share *= min(share / gpus[c, 0], 1.0)  # a share below its least size: for a part of the time
        factor = 1.0
        if not np.isnan(block[QUEUE_FIRST_START_S, i]):
            age_s = now_s - submit_s[int(block[QUEUE_JOB, i])]
            used_s = block[QUEUE_RESTARTS, i] * restart_s
            factor = max(age_s - used_s, 0.0) / max(age_s + (restart_s + lost_s[i]), 1.0)
        for s in range(sizes):
            speedup[i, s] = speeds[c, s, last] / max(at_share, 1e-300)
            keeps = gpus[c, s] == block[QUEUE_HELD_GPUS, i]
            discounted[i, s] = speedup[i, s] * (1.0 if keeps else factor)
            is_discounted = is_discounted or (factor < 1.0 and not keeps)
    return discounted, speedup, is_discounted
