"""Who gets the next GPU, when jobs run on as many as there are."""

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
from wattline.policy.elastic.capacity import Offer, granted, grow, offer, pace

_LENGTHS = ("unknown", "known")
_AHEAD = 1.25  # times the service of who waits: who runs goes on until then


@dataclass(frozen=True)
class Afs:
    """Elastic sharing (Hwang et al., NSDI 2021, "Elastic Resource Sharing for Distributed Deep Learning").

    Everybody starts with nothing, and GPUs are handed out one step after the other. With *lengths* known
    (AFS-L) a step goes to the winner of all pairs: of two jobs without GPUs the one with less time to run;
    else, if a ends earlier with what it has so far and b later, b wins if

        (p_b(next) − p_b(now)) / p_b(next)  >  (p_a(next) − p_a(now)) / p_a(now),    p: speed,

    each per GPU of the step. With lengths unknown (AFS-P) everybody gets its least size first, those with
    the least attained service (GPU-seconds) before others where GPUs are short: who runs goes on until it
    is *quantum_s* seconds and a quarter ahead of somebody who waits. What is left goes, step by step, to
    whom it speeds up most, by the logarithm of the speed per GPU.
    Another size costs *rescale_s*, which must pay within *horizon_s* or the rest of the job, whatever is
    shorter: if that is H, sizes that a running job does not have count H / (H + *rescale_s*) of their speed.
    Where lengths are unknown, a job is taken to go on for as long as it has run.
    *Deviates:* steps lead to the next power of two or the size asked for, not to one GPU more; the original
    changes sizes at no cost (CoDDL), and so has no horizon; who runs stays on its kind of GPU.
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
        """The plan; see `wattline.policy.chain.Stage`. Of an earlier *plan* only who is in it counts."""
        offers = offer(snapshot, models, plan, batches=False)
        ways = offers.menu
        speed = ways.speed[offers.sort, :, -1]
        if self.lengths == "unknown":
            kept = pace(snapshot, offers, snapshot.service_s[:, None], self.rescale_s, self.horizon_s)
            return self._by_service(snapshot, offers, speed * kept, plan)
        work_s = snapshot.steps_left * snapshot.jobs.step_s[snapshot.queue.job]
        kept = pace(snapshot, offers, work_s[:, None] / speed, self.rescale_s, self.horizon_s)
        level = by_length(speed * kept, work_s, offers.sort, offers.pool, offers.room, ways.sizes, ways.gpus)
        return granted(snapshot, offers, level, plan)

    def _by_service(self, snapshot: Snapshot, offers: Offer, paces: Floats, plan: Plan | None) -> Plan:
        served = snapshot.service_gpu_s
        counts = np.where(offers.held > 0, (served - self.quantum_s * offers.held) / _AHEAD, served)
        first = np.lexsort((offers.held > 0, counts))
        level = grow(offers, first, np.log(paces), np.full(len(first), -math.inf))
        waits = (level < 0) & (offers.pool >= 0)
        tick_s = math.inf
        if waits.any() and (runs := np.flatnonzero(level >= 0)).size:
            gpus = offers.menu.gpus[offers.sort[runs], level[runs]]
            ahead_s = (_AHEAD * served[waits].min() - served[runs]) / gpus + self.quantum_s
            tick_s = snapshot.now_s + float(ahead_s.min(initial=self.quantum_s, where=ahead_s > 0))
        return granted(snapshot, offers, level, plan, tick_s=max(tick_s, snapshot.now_s + 1.0))


@inner
def _next(i: int, level: int, c: int, room: int, pace: Floats, sizes: Ints, gpus: Ints) -> tuple[int, float]:
    """The size of a running job's best step within *room* (-1: none), and how much speed it adds per GPU."""
    to, most = -1, 0.0
    for s in range(level + 1, sizes[c]):
        more = gpus[c, s] - gpus[c, level]
        if more > room:
            break
        gain = (pace[i, s] - pace[i, level]) / more
        if gain > most:
            to, most = s, gain
    return to, most


@kernel(F2, F1, I1, I1, I1, I1, I2)
def by_length(
    paces: Floats, work_s: Floats, sort: Ints, pool: Ints, room: Ints, sizes: Ints, gpus: Ints
) -> Ints:
    """The size of every row (-1: none) by the rule of pairs.

    Of all jobs that no later one beats, the step goes to the one that ends first. Among jobs without
    GPUs only the shortest can win. Heaps keep the jobs that have GPUs and could use more: what is in them
    of a job that has grown since is passed over.
    """
    count = len(sort)
    level = np.full(count, -1, dtype=np.int64)
    to = np.full(count, -1, dtype=np.int64)  # the size of a job's next step
    early = np.empty(count)  # what the step is worth if the other ends later
    length_s = np.empty(count)
    for i in range(count):
        length_s[i] = work_s[i] / paces[i, 0]
    order = np.argsort(length_s, kind="mergesort")
    for k in range(len(room)):
        free = room[k]
        waiting = 0
        by_late = [(0.0, 0, 0)]  # the largest first: what a step is worth if the other ends earlier
        by_early = [(0.0, 0, 0)]  # the largest first, of those whom somebody beats
        by_end = [(0.0, 0, 0)]  # the first to end, of those whom perhaps nobody beats
        by_late.pop()
        by_early.pop()
        by_end.pop()
        while True:
            while waiting < count:
                i = order[waiting]
                if pool[i] == k and gpus[sort[i], 0] <= free:
                    break
                waiting += 1
            best = 1.0 / gpus[sort[order[waiting]], 0] if waiting < count else 0.0
            while len(by_late) > 0 and to[by_late[0][1]] != by_late[0][2]:
                heappop(by_late)
            if len(by_late) > 0:
                best = max(best, -by_late[0][0])
            while len(by_early) > 0 and -by_early[0][0] >= best:
                _, i, s = heappop(by_early)
                if to[i] == s:
                    heappush(by_end, (work_s[i] / paces[i, level[i]], i, s))
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
                more = gpus[sort[at], to[at]] - gpus[sort[at], level[at]]
                if more <= free:
                    free -= more
                    level[at] = to[at]
            elif waiting < count:
                at = order[waiting]
                waiting += 1
                free -= gpus[sort[at], 0]
                level[at] = 0
            else:
                break
            to[at], gain = _next(at, level[at], sort[at], free, paces, sizes, gpus)
            if to[at] >= 0:
                early[at] = gain / paces[at, level[at]]
                heappush(by_late, (-gain / paces[at, to[at]], at, to[at]))
                heappush(by_early, (-early[at], at, to[at]))
    return level
