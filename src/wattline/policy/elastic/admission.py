"""Admission of jobs with deadlines: minimum satisfactory shares (Gu et al., ASPLOS 2023, "ElasticFlow").

A schedule is a list of slots, each with an end and a number of free GPUs. A slot ends where a planned job
ends, so nothing is rounded, and there are never more slots than jobs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.table import Bools, Floats, Ints
from wattline.jit import F1, F2, FLOAT, I1, I2, inner, kernel, record

_FEWEST, _STEADY, _WIDE = range(3)  # largest size of a schedule: the share, that or the present one, any
_WAYS = 3


class DeadlineRows(NamedTuple):
    """Rows of the queue as admission needs them; times count from now."""

    due_s: Floats
    work_s: Floats  # remaining, on the requested GPUs
    starting_s: Floats  # until a restart that is under way ends
    started: Ints  # 1: it has run before
    held: Ints  # GPUs
    job_class: Ints
    pool: Ints  # kind of GPU


class SizeTable(NamedTuple):
    """Sizes by job class: how many there are, their GPUs and their speed."""

    size_count: Ints
    gpus: Ints
    speed: Floats


class _Shares(NamedTuple):
    """Results of admission by row of the queue, see `admit`."""

    share: Ints
    now: Ints
    end_s: Floats
    rise_s: Floats


@inner
def _find_fastest(c: int, most: int, free: int, sizes: SizeTable) -> int:
    """Return the fastest size of a job class up to *most* for which there are GPUs; -1: none."""
    best = -1
    for s in range(most + 1):
        if sizes.gpus[c, s] <= free and (best < 0 or sizes.speed[c, s] > sizes.speed[c, best]):
            best = s
    return best


@inner
def _schedule_job(
    i: int,
    most: int,
    rows: DeadlineRows,
    sizes: SizeTable,
    restart_s: float,
    until_s: Floats,
    free: Ints,
    taken: Ints,
) -> tuple[float, int]:
    """Return when row *i* ends with sizes up to *most*, and in which slot; inf if that is not in time.

    Writes its size in each slot into *taken*. It keeps its size through a slot in which another would lose
    more by the restart than it gains.
    """
    gpus, speed = sizes.gpus, sizes.speed
    c, due_s, work_s, started = rows.job_class[i], rows.due_s[i], rows.work_s[i], rows.started[i] == 1
    has = -1
    for s in range(most + 1):
        if gpus[c, s] == rows.held[i]:
            has = s
    lost_s, at_s = rows.starting_s[i], 0.0
    for b in range(len(until_s)):
        if at_s >= due_s:
            break
        long_s = until_s[b] - at_s
        s = _find_fastest(c, most, free[b], sizes)
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
def _schedule_all(
    k: int,
    way: int,
    is_in: Bools,
    by_deadline: Ints,
    room: int,
    rows: DeadlineRows,
    sizes: SizeTable,
    restart_s: float,
    shares: _Shares,
) -> bool:
    """Schedule the rows that are in on GPUs of kind *k*; return whether all are in time. See `admit`."""
    gpus = sizes.gpus
    most_slots = len(by_deadline) + 1
    until_s = np.empty(most_slots)
    free = np.empty(most_slots, dtype=np.int64)
    taken = np.empty(most_slots, dtype=np.int64)
    wider = np.empty(most_slots, dtype=np.int64)
    until_s[0], free[0] = np.inf, room
    slots = 1
    for i in by_deadline:
        if rows.pool[i] != k or not is_in[i]:
            continue
        c = rows.job_class[i]
        ends_s, last = np.inf, 0
        for most in range(sizes.size_count[c]):
            if gpus[c, most] > room:
                break
            ends_s, last = _schedule_job(
                i, most, rows, sizes, restart_s, until_s[:slots], free[:slots], taken
            )
            if ends_s < np.inf:
                break
        if ends_s == np.inf:
            return False
        top = most
        for s in range(most + 1, sizes.size_count[c]):
            if gpus[c, s] <= room and (way == _WIDE or (way == _STEADY and gpus[c, s] == rows.held[i])):
                top = s
        if top > most:
            wide_s, wide_last = _schedule_job(
                i, top, rows, sizes, restart_s, until_s[:slots], free[:slots], wider
            )
            if wide_s < np.inf:
                most, ends_s, last = top, wide_s, wide_last
                taken[: last + 1] = wider[: last + 1]
        shares.share[i], shares.now[i], shares.end_s[i], shares.rise_s[i] = most, taken[0], ends_s, np.inf
        for b in range(last, 0, -1):
            if taken[b] > taken[0]:
                shares.rise_s[i] = until_s[b - 1]
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
def _can_schedule(
    k: int,
    is_in: Bools,
    by_deadline: Ints,
    room: int,
    rows: DeadlineRows,
    sizes: SizeTable,
    restart_s: float,
    shares: _Shares,
) -> bool:
    """Return whether all rows that are in are in time by one of the schedules; the first such one stays."""
    for way in range(_WAYS):
        if _schedule_all(k, way, is_in, by_deadline, room, rows, sizes, restart_s, shares):
            return True
    return False


@kernel(
    I1,
    I1,
    I1,
    record(DeadlineRows, F1, F1, F1, I1, I1, I1, I1),
    record(SizeTable, I1, I2, F2),
    FLOAT,
)
def admit(
    order: Ints, by_deadline: Ints, room: Ints, rows: DeadlineRows, sizes: SizeTable, restart_s: float
) -> tuple[Ints, Ints, Floats, Floats]:
    """Return for every row its minimum satisfactory share, its size now, its end and when its size rises.

    The share is -1 for rows that are not admitted, the size now -1 for rows that wait; the last two are
    seconds from now. *order* and *by_deadline* are the rows with a deadline, in the order of admission and
    of deadlines. As many as possible are tried at once: half of them after each failure, twice as many
    after each success.
    """
    count = len(rows.job_class)
    shares = _Shares(
        np.full(count, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        np.full(count, np.inf),
        np.full(count, np.inf),
    )
    is_in = np.zeros(count, dtype=np.bool_)
    for k in range(len(room)):
        able = np.empty(len(order), dtype=np.int64)
        ables = 0
        for i in order:
            if rows.pool[i] != k:
                continue
            is_in[i] = True
            alone = np.full(1, i)
            able[ables] = i
            ables += _schedule_all(k, _FEWEST, is_in, alone, room[k], rows, sizes, restart_s, shares)
            is_in[i] = False
        at, block = 0, ables
        while at < ables:
            block = min(block, ables - at)
            is_in[able[at : at + block]] = True
            if _can_schedule(k, is_in, by_deadline, room[k], rows, sizes, restart_s, shares):
                at += block
                block *= 2
            else:
                is_in[able[at : at + block]] = False
                at += block == 1
                block = max(1, block // 2)
        _can_schedule(k, is_in, by_deadline, room[k], rows, sizes, restart_s, shares)
    for i in range(count):
        if not is_in[i]:
            shares.share[i], shares.now[i], shares.end_s[i], shares.rise_s[i] = -1, -1, np.inf, np.inf
    return shares.share, shares.now, shares.end_s, shares.rise_s
