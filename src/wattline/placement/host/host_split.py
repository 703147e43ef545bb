"""Split of a node's host resources among its jobs."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Bools, Floats, Ints
from wattline.jit import inner
from wattline.placement.host.host_arrays import HostNodes, NodeJobs, PointTable
from wattline.placement.kernel_arrays import ENTRY_GPUS, ENTRY_NODE


@inner
def split_host(
    rows: Ints, gpus: Ints, sets: Ints, left: Ints, capacity: Ints, points: PointTable, point: Ints
) -> float:
    """Split what is *left* of a node among the jobs *rows* with *gpus* GPUs; return the sum of their speeds.

    *sets* is the set of each row of the queue on this node. First every job gets the least that makes it as
    fast as its proportional share; then steps go, one by one, to the job that gains most speed for what the
    step takes. Writes the *point* of each job and updates *left*.
    """
    start, _, host, speed = points
    for a in range(len(rows)):
        point[a] = start[sets[rows[a]]]
        for h in range(3):
            left[h] -= gpus[a] * host[h, point[a]]
    while True:
        best, best_point, best_worth = -1, -1, 0.0
        for a in range(len(rows)):
            for p in range(point[a] + 1, start[sets[rows[a]] + 1]):
                gain = speed[p] - speed[point[a]]
                if gain <= 1e-9:
                    continue
                cost, fits = 0.0, True
                for h in range(3):
                    more = gpus[a] * (host[h, p] - host[h, point[a]])
                    if capacity[h] > 0 and more > 0:
                        fits = fits and more <= left[h]
                        cost = max(cost, more / max(1, left[h]))
                worth = gain / max(cost, 1e-9)
                if not fits or worth < best_worth * (1 - 1e-9):
                    continue
                if worth <= best_worth * (1 + 1e-9) and speed[point[a]] >= speed[point[best]]:
                    continue  # of equals the slowest
                best, best_point, best_worth = a, p, worth
        if best < 0:
            break
        for h in range(3):
            left[h] -= gpus[best] * (host[h, best_point] - host[h, point[best]])
        point[best] = best_point
    total = 0.0
    for a in range(len(rows)):
        total += speed[point[a]]
    return total


@inner
def _has_earlier_equal(a: int, start: int, rows: Ints, stays: Bools, sets: Ints) -> bool:
    """Return whether a job before *a* on the same node equals it: then *a* need not be tried."""
    equal = False
    for c in range(start, a):
        equal = equal or (sets[rows[c]] == sets[rows[a]] and stays[c] == stays[a])
    return equal


@inner
def _could_gain(
    gpus: int, point_a: int, end_a: int, point_b: int, left_b: Ints, capacity_b: Ints, points: PointTable
) -> bool:
    """Return whether a job at *point_a* could be faster in the place of another at *point_b*.

    Points of the job there end at *end_a*. The other jobs of the node are ignored.
    """
    for p in range(point_a + 1, end_a):
        fits = points.speed[p] > points.speed[point_a] + 1e-9
        for h in range(3):
            available = left_b[h] + gpus * points.host[h, point_b]
            fits = fits and (capacity_b[h] == 0 or gpus * points.host[h, p] <= available)
        if fits:
            return True
    return False


@inner
def swap_best_pair(
    jobs: NodeJobs,
    speed_sum: Floats,
    move: float,
    spare: Ints,
    left: Ints,
    nodes: HostNodes,
    sets: Ints,
    points: PointTable,
) -> bool:
    """Swap the two jobs of different nodes for which that helps most; return whether a pair was swapped.

    All jobs together must gain *move* in speed for each of the two that runs already, because it restarts.
    *speed_sum* is that of each node; *spare* and *left* are its host before and after the split.
    """
    start, rows, gpus, point, stays = jobs
    shape, count = nodes.shape, len(speed_sum)
    widest = 0
    for n in range(count):
        widest = max(widest, start[n + 1] - start[n])
    trial_point = np.empty((2, widest), dtype=np.int64)
    trial_left = np.empty((2, 3), dtype=np.int64)
    best, best_a, best_b = 0.0, -1, -1
    for n in range(count):
        for a in range(start[n], start[n + 1]):
            i, set_a = rows[a], sets[rows[a], shape[n]]
            if points.speed[point[a]] >= points.speed[points.start[set_a + 1] - 1] - 1e-9:
                continue  # it is as fast as it can be
            if _has_earlier_equal(a, start[n], rows, stays, sets[:, shape[n]]):
                continue
            for m in range(count):
                if m == n or nodes.kind[m] != nodes.kind[n]:
                    continue
                end_a = points.start[sets[i, shape[m]] + 1]
                for b in range(start[m], start[m + 1]):
                    j = rows[b]
                    if gpus[b] != gpus[a] or sets[j, shape[m]] == sets[i, shape[m]]:
                        continue
                    if _has_earlier_equal(b, start[m], rows, stays, sets[:, shape[m]]) or not _could_gain(
                        gpus[a], point[a], end_a, point[b], left[:, m], nodes.host[:, m], points
                    ):
                        continue
                    rows[a], rows[b] = j, i
                    after = 0.0
                    for k in range(2):
                        here = n if k == 0 else m
                        for h in range(3):
                            trial_left[k, h] = spare[h, here]
                        after += split_host(
                            rows[start[here] : start[here + 1]],
                            gpus[start[here] : start[here + 1]],
                            sets[:, shape[here]],
                            trial_left[k],
                            nodes.host[:, here],
                            points,
                            trial_point[k],
                        )
                    rows[a], rows[b] = i, j
                    fits = True  # spanning jobs may have taken what the least of the other job needs
                    for k in range(2):
                        for h in range(3):
                            fits = fits and (nodes.host[h, n if k == 0 else m] == 0 or trial_left[k, h] >= 0)
                    if not fits:
                        continue
                    gain = after - speed_sum[n] - speed_sum[m] - move * (int(stays[a]) + int(stays[b]))
                    if gain > best + 1e-6:
                        best, best_a, best_b = gain, a, b
    if best_a < 0:
        return False
    rows[best_a], rows[best_b] = rows[best_b], rows[best_a]
    stays[best_a] = stays[best_b] = False
    return True


@inner
def raise_spanning_job(
    point_set: int, entry_range: Ints, entries: Ints, left: Ints, node_host: Ints, points: PointTable
) -> int:
    """Return the fastest point of a job for which all its nodes have enough left; update *left*.

    The job spans nodes, and *left* is without its first point.
    """
    host, speed = points.host, points.speed
    first = best = points.start[point_set]
    for p in range(first + 1, points.start[point_set + 1]):
        fits = speed[p] > speed[best]
        for a in range(entry_range[0], entry_range[1]):
            n = entries[ENTRY_NODE, a]
            for h in range(3):
                more = entries[ENTRY_GPUS, a] * (host[h, p] - host[h, first])
                fits = fits and (more <= 0 or node_host[h, n] == 0 or more <= left[h, n])
        if fits:
            best = p
    for a in range(entry_range[0], entry_range[1]):
        for h in range(3):
            left[h, entries[ENTRY_NODE, a]] -= entries[ENTRY_GPUS, a] * (host[h, best] - host[h, first])
    return int(best)
