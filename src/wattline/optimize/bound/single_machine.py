"""Schedules of one machine that runs one job at a time, whole: the relaxation with a closed solution.

A cluster is at most as fast as one machine that does the GPU time of any job at the speed of all its GPUs.
Shortest remaining time first is then best for the mean completion time (Schrage 1968), and shortest first
for the mean busy time (Goemans 1997).
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from wattline.core.table import Floats, Ints


def schedule_shortest_first(submit_s: Floats, need_s: Floats) -> tuple[Floats, Floats, Ints]:
    """Return start, end and job of each interval; the job with the least *need_s* goes first, preempting."""
    spans: list[tuple[float, float, int]] = []
    _run(submit_s, need_s, np.array(need_s), spans, by_remaining=False)
    start, end, job = zip(*spans, strict=True) if spans else ((), (), ())
    return np.array(start), np.array(end), np.array(job, dtype=np.int64)


def sum_shortest_remaining(submit_s: Floats, need_s: Floats) -> float:
    """Return the least sum of the times from submission to completion."""
    return _run(submit_s, need_s, np.array(need_s), [], by_remaining=True)


def _run(
    submit_s: Floats,
    need_s: Floats,
    left_s: Floats,
    spans: list[tuple[float, float, int]],
    by_remaining: bool,
) -> float:
    """Run the machine, add its intervals to *spans*, and return the sum of completion minus submission."""
    order = np.argsort(submit_s, kind="stable")
    queue: list[tuple[float, int]] = []
    total_s, now_s, at = 0.0, 0.0, 0
    while at < len(order) or queue:
        if not queue:
            now_s = float(submit_s[order[at]])
        while at < len(order) and submit_s[order[at]] <= now_s:
            job = int(order[at])
            heappush(queue, (float(need_s[job]), job))
            at += 1
        _, job = queue[0]
        until_s = float(submit_s[order[at]]) if at < len(order) else np.inf
        end_s = min(now_s + float(left_s[job]), until_s)
        if end_s > now_s:
            spans.append((now_s, end_s, job))
        done = now_s + float(left_s[job]) <= until_s
        left_s[job] -= end_s - now_s
        now_s = end_s
        heappop(queue)
        if done:
            total_s += end_s - float(submit_s[job])
        else:
            heappush(queue, (float(left_s[job]) if by_remaining else float(need_s[job]), job))
    return total_s
