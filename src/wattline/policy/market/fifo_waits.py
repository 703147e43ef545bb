"""Waits in order of submission: the yardstick of starvation.

The jobs at hand are run once more on paper: on one machine with all GPUs, first come first served, with EASY
backfill (a later job may start if that does not delay the first that waits). A wait that has ended by now
depends on no job that comes later, so it can be computed for a whole table at once. Only with durations that
are estimates it is computed anew for each decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.jit import BOOL, F1, I1, INT, inner, kernel

_DEPTH = 200  # waiting jobs that backfill looks at, as in Slurm's default order of magnitude
_LAST_JOBS = 5000  # with estimates: earlier jobs are left out, so waits are rather too short than too long


def find_fifo_starts(snapshot: Snapshot, gpus: int) -> Floats:
    """Return when each queued job would start on *gpus* GPUs in order of submission; nan: unknown."""
    jobs, queued = snapshot.jobs, snapshot.queue.job
    if snapshot.estimates is None:
        return compute_fifo_starts(jobs, gpus)[queued]
    return _find_starts(snapshot, gpus, jobs.duration_s, True)


def find_earliest_fifo_starts(snapshot: Snapshot, gpus: Iterable[int]) -> Floats:
    """Return the earliest such start with any of these numbers of *gpus*, where durations are estimates.

    No queued job can take less than what it has done so far. With wrong estimates backfill may also delay the
    first job that waits, so there are schedules with and without a reservation for it.
    """
    jobs, queued = snapshot.jobs, snapshot.queue.job
    duration_s = np.array(jobs.duration_s)
    duration_s[queued] = snapshot.steps_done * jobs.step_s[queued]
    starts = [
        _find_starts(snapshot, count, duration_s, reserves) for count in gpus for reserves in (True, False)
    ]
    return np.asarray(np.fmin.reduce(starts))


def _find_starts(snapshot: Snapshot, gpus: int, duration_s: Floats, reserves: bool) -> Floats:
    """Return when each queued job would start if jobs took *duration_s*; *reserves*: see `_run_on_paper`."""
    jobs = snapshot.jobs
    end = int(np.searchsorted(jobs.submit_s, snapshot.now_s, side="right"))
    known = slice(max(0, end - _LAST_JOBS), end)
    start_s = np.full(len(jobs), np.nan)
    start_s[known] = _run_on_paper(jobs.submit_s[known], jobs.gpus[known], duration_s[known], gpus, reserves)
    return start_s[snapshot.queue.job]


@lru_cache(maxsize=32)
def compute_fifo_starts(jobs: Jobs, gpus: int) -> Floats:
    """Return when each job would start on *gpus* GPUs in order of submission; nan: it needs more than all."""
    return _run_on_paper(jobs.submit_s, jobs.gpus, jobs.duration_s, gpus, True)


@inner
def _find_shadow(
    need: int, free: int, end_s: Floats, width: Ints, running: Ints, first: int, last: int
) -> tuple[float, int]:
    """Return when *need* GPUs will be free, and how many more there are then."""
    for p in range(first, last):
        job = running[p]
        free += width[job]
        if free >= need:
            return float(end_s[job]), free - need
    return np.inf, 0


@inner
def _insert_by_end(job: int, end_s: Floats, running: Ints, first: int, last: int) -> None:
    """Write *job* into *running*, which is sorted by end from *first* to *last*, behind its equals."""
    at = last
    while at > first and end_s[running[at - 1]] > end_s[job]:
        running[at] = running[at - 1]
        at -= 1
    running[at] = job


@kernel(F1, I1, F1, INT, BOOL)
def _run_on_paper(submit_s: Floats, width: Ints, duration_s: Floats, gpus: int, reserves: bool) -> Floats:
    """Return when each job starts; without *reserves* backfill may delay the first job that waits."""
    total = len(submit_s)
    start_s, end_s = np.full(total, np.nan), np.full(total, np.inf)
    running, waiting = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    first, last, free = 0, 0, gpus  # those that run are from first to last, by end
    head, line, at = 0, 0, 0  # those that wait are from head to line, by submission
    while at < total or first < last:
        now_s = submit_s[at] if at < total else np.inf
        if first < last:
            now_s = min(now_s, end_s[running[first]])
        while first < last and end_s[running[first]] <= now_s:
            free += width[running[first]]
            first += 1
        while at < total and submit_s[at] <= now_s:
            if width[at] <= gpus:
                waiting[line] = at
                line += 1
            at += 1
        deepest = min(line, head + _DEPTH + 1)
        while head < line and width[waiting[head]] <= free:
            job = waiting[head]
            head += 1
            free -= width[job]
            start_s[job], end_s[job] = now_s, now_s + duration_s[job]
            _insert_by_end(job, end_s, running, first, last)
            last += 1
        shadow_s, extra = np.inf, 0
        if reserves and head < line:
            shadow_s, extra = _find_shadow(width[waiting[head]], free, end_s, width, running, first, last)
        for p in range(head + 1, deepest):
            job = waiting[p]
            in_time = now_s + duration_s[job] <= shadow_s
            if width[job] > free or not (in_time or width[job] <= extra):
                continue
            if not in_time:
                extra -= width[job]
            for q in range(p, head, -1):  # those before it close up; they are few
                waiting[q] = waiting[q - 1]
            head += 1
            free -= width[job]
            start_s[job], end_s[job] = now_s, now_s + duration_s[job]
            _insert_by_end(job, end_s, running, first, last)
            last += 1
    return start_s
