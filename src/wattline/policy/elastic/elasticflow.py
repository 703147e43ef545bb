"""Who can be in time, on how many GPUs, and who gets what these leave."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import HELD, RATE
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.jit import F1, F2, FLOAT, I1, I2, inner, kernel
from wattline.policy.chain import asked
from wattline.policy.elastic.capacity import Offer, granted, grow, offer, pace

_HELD = REASONS.index(Reason.HELD)
_EXACT_S = 1e-3  # a deadline that is missed by less is met: sums of floats are no more exact
_LEAST_S = 1e-6  # work of a job that has none: it needs GPUs for a moment all the same
_MUST = 1e15  # what the share is worth that an admitted job must have
_FEWEST, _STEADY, _WIDE = range(3)  # most GPUs of a plan: its share, that or what it has, all there are
_WAYS = 3
_START = 1e6  # what each of the first GPUs is worth, before anybody has more than it must


@dataclass(frozen=True)
class ElasticFlow:
    """Who can be in time is, on as few GPUs as that takes (Gu et al., ASPLOS 2023, "ElasticFlow").

    One after the other, those that have started and then those that wait, each by submission, jobs are
    admitted if they and all admitted before them can be in time. To see that, the jobs are planned in order
    of their deadlines: each gets its minimum satisfactory share, the smallest size with which it ends in
    time if it never has more GPUs and never more than earlier deadlines leave. A slot of time ends where
    somebody who is planned ends: so nothing is rounded, and there are never more slots than jobs. Another
    size costs *restart_s*. Where shares leave somebody late, running jobs are planned with what they have if
    that is more, and then everybody with all there is. What the first slot leaves goes to whom it is worth
    most: everybody who has none gets its least size, those who were admitted before the others, then each
    step goes to whom it speeds up most, by the logarithm of the speed per GPU; of admitted jobs only to those
    that could go back in time. Jobs without a deadline, and those that cannot be admitted, live on what is
    left; with *reject* 1 the latter are held back unless they have started. Asked again when a share should
    grow, but not before *quantum_s*.
    *Deviates:* sizes are powers of two or what was asked for, as in the menu; a policy has no memory, so that
    admission is derived anew every time: whom an early end helps may be admitted late, and now and then a job
    is not admitted any more, which the two larger plans make rare; who is refused runs as best effort unless
    *reject* says otherwise; slots are as long as they need to be; what is left over goes by speed, not by GPU
    time saved; blocks of GPUs are the placer's, see `wattline.placement.buddy.placer`; who runs stays on its kind.
    """

    restart_s: float = 30.0
    reject: int = 0
    quantum_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.restart_s < math.inf:
            raise ConfigError(f"restart_s must be at least 0 and finite, got {self.restart_s}")
        if self.reject not in (0, 1):
            raise ConfigError(f"reject must be 0 or 1, got {self.reject}")
        if not self.quantum_s >= 1:
            raise ConfigError(f"quantum_s must be at least 1, got {self.quantum_s}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """The plan; see `wattline.policy.chain.Stage`. Of an earlier *plan* only who is in it counts."""
        offers = offer(snapshot, models, plan, batches=False)
        share, now, end_s, rise_s = self._shares(snapshot, offers)
        if self.reject:
            late = np.isfinite(_deadlines_s(snapshot)) & (share < 0) & np.isnan(snapshot.queue.first_s)
            plan = _without(snapshot, plan, late)
            offers = replace(offers, pool=np.where(late, -1, offers.pool))
        level = self._grown(snapshot, offers, share, now, end_s)
        short = (share >= 0) & (level < share) & (rise_s < math.inf)
        wait_s = max(self.quantum_s, float(rise_s.min(initial=math.inf, where=short)))
        granting = granted(snapshot, offers, level, plan, tick_s=snapshot.now_s + wait_s)
        return replace(granting, kind=offers.pool[granting.row])

    def admits(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Bools:
        """Which rows of the queue have a deadline and will meet it, if the models are right."""
        share, *_ = self._shares(snapshot, offer(snapshot, models, plan, batches=False))
        return np.asarray(share >= 0)

    def _shares(self, snapshot: Snapshot, offers: Offer) -> tuple[Ints, Ints, Floats, Floats]:
        """See `_admit`: for every row its share, what it has of that now, when it ends and when it grows."""
        queue, ways = snapshot.queue, offers.menu
        due_s = _deadlines_s(snapshot) - snapshot.now_s
        has_one = np.isfinite(due_s) & (offers.pool >= 0)
        started = ~np.isnan(queue.first_s)
        turn = np.argsort(~started, kind="stable")
        by_deadline = np.argsort(due_s, kind="stable")
        return _admit(
            np.ascontiguousarray(turn[has_one[turn]]),
            np.ascontiguousarray(by_deadline[has_one[by_deadline]]),
            due_s + _EXACT_S,
            np.maximum(_work_s(snapshot), _LEAST_S),
            _starting_s(snapshot, self.restart_s),
            started.astype(np.int64),
            offers.held,
            offers.sort,
            offers.pool,
            offers.room,
            ways.sizes,
            ways.gpus,
            np.ascontiguousarray(ways.speed[:, :, -1]),
            self.restart_s,
        )

    def _grown(self, snapshot: Snapshot, offers: Offer, share: Ints, now: Ints, end_s: Floats) -> Ints:
        """The size of every row (-1: none): what it must have *now*, and what it gets of the rest."""
        due_s = _deadlines_s(snapshot) - snapshot.now_s
        speed = offers.menu.speed[offers.sort, :, -1]
        kept = pace(snapshot, offers, _work_s(snapshot)[:, None] / speed, self.restart_s, math.inf)
        worth = np.log(speed * kept)
        size = np.arange(worth.shape[1])
        worth[size < now[:, None]] = -_MUST
        there_and_back_s = self.restart_s * np.where(np.isnan(snapshot.queue.first_s), 1, 2)
        tight = (now >= 0) & (end_s + there_and_back_s > due_s + _EXACT_S) & (self.restart_s > 0)
        held = offers.menu.gpus[offers.sort] == offers.held[:, None]
        worth[tight[:, None] & (size > now[:, None]) & ~held] = -_MUST
        first = np.lexsort((np.where(share >= 0, due_s, 0.0), share < 0))
        turn = np.empty(len(share))
        turn[first] = np.arange(len(share), 0, -1)
        least = offers.menu.gpus[offers.sort, 0]
        return grow(offers, np.flatnonzero(now >= 0), worth, -least * (_START + turn))


def _deadlines_s(snapshot: Snapshot) -> Floats:
    return np.asarray(snapshot.jobs.deadline_s[snapshot.queue.job])


def _work_s(snapshot: Snapshot) -> Floats:
    """What is left of each row, in seconds on the GPUs it asked for."""
    return np.asarray(snapshot.steps_left * snapshot.jobs.step_s[snapshot.queue.job])


def _starting_s(snapshot: Snapshot, restart_s: float) -> Floats:
    """For how long each row will still be starting again, if that takes *restart_s*."""
    queue = snapshot.queue
    starts = (queue.block[HELD] > 0) & (queue.block[RATE] == 0) & (queue.restarts > 0)
    return np.where(starts, np.maximum(0.0, restart_s - (snapshot.now_s - queue.since_s)), 0.0)


def _without(snapshot: Snapshot, plan: Plan | None, out: Bools) -> Plan:
    """*plan* without these rows, which are held back."""
    plan = asked(snapshot) if plan is None else plan
    reason = np.full(len(out), _HELD, dtype=np.int64) if plan.reason is None else plan.reason.copy()
    reason[out] = _HELD
    row = plan.row[~out[plan.row]]
    cap_w = None if plan.cap_w is None else plan.cap_w[~out[plan.row]]
    return Plan(row, row, row, tick_s=plan.tick_s, cap_w=cap_w, reason=reason, meters=plan.meters)


@inner
def _best(c: int, most: int, free: int, gpus: Ints, speed: Floats) -> int:
    """The fastest size of a sort up to *most* for which there are GPUs; -1: none."""
    best = -1
    for s in range(most + 1):
        if gpus[c, s] <= free and (best < 0 or speed[c, s] > speed[c, best]):
            best = s
    return best


@inner
def _run(
    c: int,
    most: int,
    work_s: float,
    due_s: float,
    starting_s: float,
    started: bool,
    held: int,
    until_s: Floats,
    free: Ints,
    gpus: Ints,
    speed: Floats,
    restart_s: float,
    taken: Ints,
) -> tuple[float, int]:
    """When a job ends that has at most so many GPUs, and in which slot; inf if that is not in time.

    Writes its size in each slot into *taken*. It keeps its size through a slot in which another would
    lose more by the restart than it gains.
    """
    has = -1
    for s in range(most + 1):
        if gpus[c, s] == held:
            has = s
    lost_s, at_s = starting_s, 0.0
    for b in range(len(until_s)):
        if at_s >= due_s:
            break
        long_s = until_s[b] - at_s
        s = _best(c, most, free[b], gpus, speed)
        if has >= 0 and gpus[c, has] <= free[b]:
            goes_on = speed[c, has] * max(0.0, min(long_s, due_s) - lost_s)
            if goes_on >= speed[c, s] * max(0.0, min(long_s, due_s) - restart_s):
                s = has
        taken[b] = s
        if s >= 0:
            if s != has:
                lost_s = restart_s if started else 0.0
                started = True
            ends_s = at_s + lost_s + work_s / speed[c, s]
            if ends_s <= until_s[b]:
                return (ends_s if ends_s <= due_s else np.inf), b
            work_s -= speed[c, s] * max(0.0, long_s - lost_s)
            lost_s = max(0.0, lost_s - long_s)
        has = s
        at_s = until_s[b]
    return np.inf, 0


@inner
def _fill(
    k: int,
    way: int,
    is_in: Bools,
    by_deadline: Ints,
    due_s: Floats,
    work_s: Floats,
    starting_s: Floats,
    started: Ints,
    held: Ints,
    sort: Ints,
    pool: Ints,
    room: int,
    sizes: Ints,
    gpus: Ints,
    speed: Floats,
    restart_s: float,
    share: Ints,
    now: Ints,
    end_s: Floats,
    rise_s: Floats,
) -> bool:
    """Plan those who are in on GPUs of kind *k*; answers whether all are in time. See `_admit`."""
    most_slots = len(by_deadline) + 1
    until_s = np.empty(most_slots)
    free = np.empty(most_slots, dtype=np.int64)
    taken = np.empty(most_slots, dtype=np.int64)
    wider = np.empty(most_slots, dtype=np.int64)
    until_s[0], free[0] = np.inf, room
    slots = 1
    for i in by_deadline:
        if pool[i] != k or not is_in[i]:
            continue
        c = sort[i]
        ends_s, last = np.inf, 0
        for most in range(sizes[c]):
            if gpus[c, most] > room:
                break
            ends_s, last = _run(
                c, most, work_s[i], due_s[i], starting_s[i], started[i] == 1, held[i],
                until_s[:slots], free[:slots], gpus, speed, restart_s, taken,
            )  # fmt: skip
            if ends_s < np.inf:
                break
        if ends_s == np.inf:
            return False
        top = most
        for s in range(most + 1, sizes[c]):
            if gpus[c, s] <= room and (way == _WIDE or (way == _STEADY and gpus[c, s] == held[i])):
                top = s
        if top > most:
            wide_s, wide_last = _run(
                c, top, work_s[i], due_s[i], starting_s[i], started[i] == 1, held[i],
                until_s[:slots], free[:slots], gpus, speed, restart_s, wider,
            )  # fmt: skip
            if wide_s < np.inf:
                most, ends_s, last = top, wide_s, wide_last
                taken[: last + 1] = wider[: last + 1]
        share[i], now[i], end_s[i], rise_s[i] = most, taken[0], ends_s, np.inf
        for b in range(last, 0, -1):
            if taken[b] > taken[0]:
                rise_s[i] = until_s[b - 1]
        if ends_s < until_s[last]:
            for b in range(slots, last, -1):
                until_s[b], free[b] = until_s[b - 1], free[b - 1]
            until_s[last] = ends_s
            slots += 1
        for b in range(last + 1):
            if taken[b] >= 0:
                free[b] -= gpus[c, taken[b]]
    return True


@inner
def _fits(
    k: int,
    is_in: Bools,
    by_deadline: Ints,
    due_s: Floats,
    work_s: Floats,
    starting_s: Floats,
    started: Ints,
    held: Ints,
    sort: Ints,
    pool: Ints,
    room: int,
    sizes: Ints,
    gpus: Ints,
    speed: Floats,
    restart_s: float,
    share: Ints,
    now: Ints,
    end_s: Floats,
    rise_s: Floats,
) -> bool:
    """Whether all who are in are in time by one of the plans, of which the first stays. See `_admit`."""
    for way in range(_WAYS):
        if _fill(
            k, way, is_in, by_deadline, due_s, work_s, starting_s, started, held, sort, pool, room, sizes,
            gpus, speed, restart_s, share, now, end_s, rise_s,
        ):  # fmt: skip
            return True
    return False


@kernel(I1, I1, F1, F1, F1, I1, I1, I1, I1, I1, I1, I2, F2, FLOAT)
def _admit(
    turn: Ints,
    by_deadline: Ints,
    due_s: Floats,
    work_s: Floats,
    starting_s: Floats,
    started: Ints,
    held: Ints,
    sort: Ints,
    pool: Ints,
    room: Ints,
    sizes: Ints,
    gpus: Ints,
    speed: Floats,
    restart_s: float,
) -> tuple[Ints, Ints, Floats, Floats]:
    """For every row its minimum satisfactory share (-1: it is not admitted), its size in the first slot
    (-1: it waits), in how many seconds it ends, and in how many it has more than in the first slot.

    *turn* and *by_deadline* are the rows with a deadline, in the order of admission and of deadlines. As
    many as possible are tried at once: half of them after each failure, twice as many after each success.
    """
    rows = len(sort)
    share, now = np.full(rows, -1, dtype=np.int64), np.full(rows, -1, dtype=np.int64)
    end_s, rise_s = np.full(rows, np.inf), np.full(rows, np.inf)
    is_in = np.zeros(rows, dtype=np.bool_)
    for k in range(len(room)):
        able = np.empty(len(turn), dtype=np.int64)
        count = 0
        for i in turn:
            if pool[i] != k:
                continue
            is_in[i] = True
            alone = np.full(1, i)
            able[count] = i
            count += _fill(
                k, _FEWEST, is_in, alone, due_s, work_s, starting_s, started, held, sort, pool, room[k],
                sizes, gpus, speed, restart_s, share, now, end_s, rise_s,
            )  # fmt: skip
            is_in[i] = False
        at, block = 0, count
        while at < count:
            block = min(block, count - at)
            is_in[able[at : at + block]] = True
            if _fits(
                k, is_in, by_deadline, due_s, work_s, starting_s, started, held, sort, pool, room[k], sizes,
                gpus, speed, restart_s, share, now, end_s, rise_s,
            ):  # fmt: skip
                at += block
                block *= 2
            else:
                is_in[able[at : at + block]] = False
                at += block == 1
                block = max(1, block // 2)
        _fits(
            k, is_in, by_deadline, due_s, work_s, starting_s, started, held, sort, pool, room[k], sizes,
            gpus, speed, restart_s, share, now, end_s, rise_s,
        )  # fmt: skip
    for i in range(rows):
        if not is_in[i]:
            share[i], now[i], end_s[i], rise_s[i] = -1, -1, np.inf, np.inf
    return share, now, end_s, rise_s
