"""AFS: elastic sharing, one step of GPUs after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.errors import ConfigError
from wattline.jit import F1, F2, I1, I2, inner, kernel
from wattline.policy.elastic.capacity import Capacity, allocate_greedily, build_capacity, plan_from_sizes
from wattline.policy.elastic.restart_costs import compute_speeds, compute_work_s

_LENGTHS = ("unknown", "known")
_AHEAD = 1.25  # a running job goes on until it has so many times the service of a waiting one


@dataclass(frozen=True)
class Afs:
    """Elastic sharing (Hwang et al., NSDI 2021, "Elastic Resource Sharing for Distributed Deep Learning").

    All jobs start without GPUs, which are allocated one step after the other. With *lengths* known (AFS-L) a
    step goes to the winner of all pairs: of two jobs without GPUs that with less time to run; else, if a ends
    earlier with its GPUs so far and b later, b wins if

        (p_b(next) − p_b(now)) / p_b(next)  >  (p_a(next) − p_a(now)) / p_a(now),    p: speed,

    each per GPU of the step. With lengths unknown (AFS-P) all jobs get their least size first, those with
    the least attained service (GPU-seconds) before others where GPUs are short: a running job goes on until
    it is *quantum_s* seconds and a quarter ahead of a waiting one. The rest goes, step by step, where it
    adds most to the logarithm of the speed per GPU. Another size costs *rescale_s*, which must pay within
    *horizon_s* or the rest of the job, the shorter of both: if that is H, sizes that a running job does not
    have count H / (H + *rescale_s*) of their speed. Where lengths are unknown, a job is taken to go on for
    as long as it has run.
    *Deviates:* steps lead to the next power of two or the requested size, not to one GPU more; the original
    changes sizes at no cost (CoDDL), and so has no horizon; a running job stays on its kind of GPU.
    """

    lengths: Literal["unknown", "known"] = "unknown"
    rescale_s: float = 30.0
    horizon_s: float = 3600.0
    quantum_s: float = 300.0

    def __post_init__(self) -> None:
        if self.lengths not in _LENGTHS:
            raise ConfigError(f"lengths must be one of {', '.join(_LENGTHS)}, got {self.lengths!r}")
        if not 0 <= self.rescale_s < math.inf:
            raise ConfigError(f"rescale_s must be at least 0 and finite, got {self.rescale_s}")
        for name in ("horizon_s", "quantum_s"):
            if not getattr(self, name) >= 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`.

        Of an earlier *plan* only the choice of jobs counts.
        """
        capacity = build_capacity(snapshot, models, plan, batches=False, by_precedence=True)
        is_known = self.lengths == "known"
        left_s = compute_work_s(snapshot) if is_known else snapshot.service_s
        speed = compute_speeds(
            snapshot, capacity, left_s, self.rescale_s, self.horizon_s, as_requested=is_known
        )
        if is_known:
            size = allocate_by_length(capacity, speed, left_s)
            if plan is not None and plan.precedence is not None:
                size = serve_all(capacity, speed, size)
            return plan_from_sizes(snapshot, capacity, size, plan)
        return self._plan_by_service(snapshot, capacity, speed, plan)

    def _plan_by_service(
        self, snapshot: Snapshot, capacity: Capacity, speed: Floats, plan: Plan | None
    ) -> Plan:
        """Return the plan for jobs of unknown length (AFS-P)."""
        served = snapshot.service_gpu_s
        counts = np.where(capacity.held > 0, (served - self.quantum_s * capacity.held) / _AHEAD, served)
        first = np.lexsort((capacity.held > 0, counts))
        size = allocate_greedily(capacity, first, np.log(speed), np.full(len(first), -math.inf))
        waits = (size < 0) & (capacity.pool >= 0)
        next_s = math.inf
        if waits.any() and (runs := np.flatnonzero(size >= 0)).size:
            gpus = capacity.configs.gpus[capacity.job_class[runs], size[runs]]
            ahead_s = (_AHEAD * served[waits].min() - served[runs]) / gpus + self.quantum_s
            next_s = snapshot.now_s + float(ahead_s.min(initial=self.quantum_s, where=ahead_s > 0))
        next_s = max(next_s, snapshot.now_s + 1.0)
        return plan_from_sizes(snapshot, capacity, size, plan, next_decision_s=next_s)


def allocate_by_length(capacity: Capacity, speed: Floats, work_s: Floats) -> Ints:
    """Return the size of every row (-1: none) by the rule of pairs (AFS-L).

    *speed* is by row and size, *work_s* the remaining work of each row in seconds at speed 1.
    """
    configs = capacity.configs
    return _allocate_by_length(
        speed, work_s, capacity.job_class, capacity.pool, capacity.room, configs.size_count, configs.gpus
    )


def serve_all(capacity: Capacity, speed: Floats, size: Ints) -> Ints:
    """Return *size*, or sizes with which all jobs of *capacity* run, if it leaves one out.

    A precedence has chosen jobs that all fit, and a rule that prefers short jobs must not undo that. GPUs
    beyond the least sizes go where they add most to the logarithm of the speed.
    """
    rows = np.flatnonzero(capacity.pool >= 0)
    if (size[rows] >= 0).all():
        return size
    return allocate_greedily(capacity, rows, np.log(speed), np.full(len(size), -math.inf))


@inner
def _find_best_step(
    i: int, size: int, c: int, room: int, speed: Floats, sizes: Ints, gpus: Ints
) -> tuple[int, float]:
    """Return the size of a running job's best step within *room* (-1: none), and its speed gain per GPU."""
    to, most = -1, 0.0
    for s in range(size + 1, sizes[c]):
        more = gpus[c, s] - gpus[c, size]
        if more > room:
            break
        gain = (speed[i, s] - speed[i, size]) / more
        if gain > most:
            to, most = s, gain
    return to, most


@kernel(F2, F1, I1, I1, I1, I1, I2)
def _allocate_by_length(
    speed: Floats, work_s: Floats, job_class: Ints, pool: Ints, room: Ints, sizes: Ints, gpus: Ints
) -> Ints:
    """Return the size of every row (-1: none) by the rule of pairs.

    Of all jobs that no later one beats, the step goes to the first to end. Among jobs without GPUs only the
    shortest can win. Heaps hold the jobs that have GPUs and could use more; entries of a job that has grown
    since are skipped.
    """
    count = len(job_class)
    size = np.full(count, -1, dtype=np.int64)
    to = np.full(count, -1, dtype=np.int64)  # the size of a job's next step
    early = np.empty(count)  # value of the step if the other job ends later
    length_s = np.empty(count)
    for i in range(count):
        length_s[i] = work_s[i] / speed[i, 0]
    order = np.argsort(length_s, kind="mergesort")
    for k in range(len(room)):
        free = room[k]
        waiting = 0
        by_late = [(0.0, 0, 0)]  # the largest first: value of a step if the other job ends earlier
        by_early = [(0.0, 0, 0)]  # the largest first, of jobs that another beats
        by_end = [(0.0, 0, 0)]  # the first to end, of jobs that perhaps no other beats
        by_late.pop()
        by_early.pop()
        by_end.pop()
        while True:
            while waiting < count:
                i = order[waiting]
                if pool[i] == k and gpus[job_class[i], 0] <= free:
                    break
                waiting += 1
            best = 1.0 / gpus[job_class[order[waiting]], 0] if waiting < count else 0.0
            while len(by_late) > 0 and to[by_late[0][1]] != by_late[0][2]:
                heappop(by_late)
            if len(by_late) > 0:
                best = max(best, -by_late[0][0])
            while len(by_early) > 0 and -by_early[0][0] >= best:
                _, i, s = heappop(by_early)
                if to[i] == s:
                    heappush(by_end, (work_s[i] / speed[i, size[i]], i, s))
            at = -1
            while at < 0 and len(by_end) > 0:
                _, i, s = heappop(by_end)
                if to[i] != s:
                    continue
                if early[i] >= best:
                    at = i
                else:
                    heappush(by_early, (-early[i], i, s))
            if at >= 0:
                more = gpus[job_class[at], to[at]] - gpus[job_class[at], size[at]]
                if more <= free:
                    free -= more
                    size[at] = to[at]
            elif waiting < count:
                at = order[waiting]
                waiting += 1
                free -= gpus[job_class[at], 0]
                size[at] = 0
            else:
                break
            to[at], gain = _find_best_step(at, size[at], job_class[at], free, speed, sizes, gpus)
            if to[at] >= 0:
                early[at] = gain / speed[at, size[at]]
                heappush(by_late, (-gain / speed[at, to[at]], at, to[at]))
                heappush(by_early, (-early[at], at, to[at]))
    return size
