"""Pollux: numbers of GPUs and batch sizes for the largest mean speed-up of all jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_LAST_GPUS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.errors import ConfigError
from wattline.policy.elastic.capacity import Capacity, allocate_greedily, build_capacity, plan_from_sizes

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
        speedup = _compute_speedups(capacity)
        none_first = np.empty(0, dtype=np.int64)
        nothing = np.full(len(speedup), self._value(0.0))
        restarts = self._discount_restarts(snapshot, capacity)
        note = most_gpus = None
        if self.explore:
            note = most_gpus = _record_most_gpus(snapshot)
            speedup = self._limit_to_explored(capacity, speedup, most_gpus.gpus)
        size = allocate_greedily(capacity, none_first, self._value(speedup * restarts), nothing)
        next_s = math.inf
        if restarts.min(initial=1.0) < 1.0:
            best = allocate_greedily(capacity, none_first, self._value(speedup), nothing)
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

    def _discount_restarts(self, snapshot: Snapshot, capacity: Capacity) -> Floats:
        """Return the factor on each row's speed-up at each size that accounts for a restart."""
        queue = snapshot.queue
        age_s = snapshot.now_s - snapshot.jobs.submit_s[queue.job]
        lost_s = queue.restarts * self.restart_s
        restart_s = self.restart_s + snapshot.lost_work_s
        factor = np.maximum(age_s - lost_s, 0.0) / np.maximum(age_s + restart_s, 1.0)
        factor[np.isnan(queue.first_start_s)] = 1.0
        keeps = capacity.configs.gpus[capacity.job_class] == capacity.held[:, None]
        return np.where(keeps, 1.0, factor[:, None])


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


def _compute_speedups(capacity: Capacity) -> Floats:
    """Return the goodput of each row at each size, relative to an equal share of the GPUs of its kind."""
    configs, job_class = capacity.configs, capacity.job_class
    gpus, speed = configs.gpus[job_class], configs.speed[job_class, :, -1]
    crowd = np.bincount(capacity.pool[capacity.pool >= 0], minlength=len(capacity.room))
    share = (capacity.room / np.maximum(crowd, 1))[capacity.pool]
    fair = np.maximum.accumulate(speed, axis=1)  # GPUs that slow a job down need not be used
    rows = np.arange(len(job_class))
    below = np.maximum((gpus <= share[:, None]).sum(axis=1) - 1, 0)
    above = np.minimum(below + 1, gpus.shape[1] - 1)
    low, high = gpus[rows, below], gpus[rows, above]
    part = np.clip((share - low) / np.maximum(high - low, 1), 0.0, 1.0)
    at_share = fair[rows, below] + part * (fair[rows, above] - fair[rows, below])
    at_share *= np.minimum(share / gpus[:, 0], 1.0)  # a share below its least size: for a part of the time
    return np.asarray(speed / np.maximum(at_share, 1e-300)[:, None])
