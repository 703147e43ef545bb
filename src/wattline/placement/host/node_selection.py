"""Selection of nodes for jobs that need host resources beside GPUs."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Ints
from wattline.jit import inner
from wattline.models.sensitivity import MAX_EXTRA_NODES
from wattline.placement.host.host_arrays import FreeResources, HostNodes, PointTable
from wattline.placement.kernel_arrays import ENTRY_GPUS, ENTRY_NODE, sort_by_node

_MIN_SPEEDUP = 1.05  # that is worth being on more nodes
_FITS_BONUS = 100.0  # so that a node with enough of everything comes before all others


@inner
def _compute_shortage(free_gpus: int, left: Ints, capacity: Ints, share: Ints) -> float:
    """Return the part of a node's host that its free GPUs lack if each of them will want its share."""
    shortage = 0.0
    for h in range(len(capacity)):
        if capacity[h] > 0:
            shortage += max(0.0, float(free_gpus * share[h] - left[h])) / capacity[h]
    return shortage


@inner
def _find_best_node(need: int, kind: int, wanted: Ints, free: FreeResources, nodes: HostNodes) -> int:
    """Return the node with *need* free GPUs and the *wanted* host per GPU that has least left over.

    If no node has that, it is the one on which the job adds least to, or takes most from, the shortage of
    others. Of equals the one with fewest free GPUs, then the one that is up first; -1: none has the GPUs.
    """
    free_gpus, left = free
    best, best_score, after = -1, 0.0, np.empty(3, dtype=np.int64)
    for n in range(len(free_gpus)):
        if nodes.kind[n] != kind or free_gpus[n] < need:
            continue
        capacity = nodes.host[:, n]
        for h in range(3):
            after[h] = left[h, n] - need * wanted[h]
        fits, left_over = True, 0.0
        for h in range(3):
            if capacity[h] > 0:
                fits = fits and after[h] >= 0
                left_over += after[h] / capacity[h]
        if fits:
            score = left_over - _FITS_BONUS
        else:
            score = _compute_shortage(free_gpus[n] - need, after, capacity, nodes.share[:, n])
            score -= _compute_shortage(free_gpus[n], left[:, n], capacity, nodes.share[:, n])
        if best >= 0:
            if score > best_score + 1e-9:
                continue
            is_later = nodes.boot_done_s[n] >= nodes.boot_done_s[best]
            fuller = free_gpus[n] > free_gpus[best] or (free_gpus[n] == free_gpus[best] and is_later)
            if score > best_score - 1e-9 and fuller:
                continue
        best, best_score = n, score
    return best


@inner
def select_nodes(
    need: int, kind: int, wanted: Ints, free: FreeResources, nodes: HostNodes, entries: Ints, at: int
) -> int:
    """Take *need* GPUs on one node, or else on the fewest; return the end of the entries from *at* on."""
    free_gpus, left = free
    start = at
    while need > 0:
        n = _find_best_node(need, kind, wanted, free, nodes)
        if n < 0:  # the job spans nodes: the one with most room first
            for m in range(len(free_gpus)):
                if nodes.kind[m] == kind and (n < 0 or free_gpus[m] > free_gpus[n]):
                    n = m
        take = min(need, free_gpus[n])
        free_gpus[n] -= take
        need -= take
        for h in range(3):
            left[h, n] -= take * wanted[h]
        entries[ENTRY_NODE, at], entries[ENTRY_GPUS, at] = n, take
        at += 1
    sort_by_node(entries, start, at)
    return at


@inner
def _find_fastest_point(
    gpus_on: Ints, on: Ints, count: int, point_set: int, left: Ints, capacity: Ints, points: PointTable
) -> int:
    """Return the fastest point of a set for which the first *count* nodes *on* have enough left; -1: none."""
    best = -1
    for p in range(points.start[point_set], points.start[point_set + 1]):
        fits = best < 0 or points.speed[p] > points.speed[best]
        for a in range(count):
            for h in range(3):
                fits = fits and (capacity[h, on[a]] == 0 or gpus_on[a] * points.host[h, p] <= left[h, on[a]])
        if fits:
            best = p
    return best


@inner
def _take_most_cores(kind: int, count: int, free: FreeResources, nodes: HostNodes, on: Ints) -> int:
    """Write to *on* the *count* nodes of one shape with most cores left; return how many there are."""
    taken = 0
    while taken < count:
        best = -1
        for n in range(len(free.gpus)):
            skip = nodes.kind[n] != kind or free.gpus[n] == 0
            skip = skip or (taken > 0 and nodes.shape[n] != nodes.shape[on[0]])
            for a in range(taken):
                skip = skip or on[a] == n
            if not skip and (best < 0 or free.host[0, n] > free.host[0, best]):
                best = n
        if best < 0:
            break
        on[taken] = best
        taken += 1
    return taken


@inner
def select_extra_nodes(
    need: int,
    kind: int,
    sets: Ints,
    spread: Ints,
    free: FreeResources,
    nodes: HostNodes,
    points: PointTable,
    entries: Ints,
    at: int,
) -> int:
    """Take *need* GPUs on more nodes than a job needs, if it is clearly faster with more of their hosts.

    Return the end of the entries from *at* on; -1: it is better off on one node, or fits on none alone.
    """
    free_gpus, left = free
    shape, speed = nodes.shape, points.speed
    on, gpus_on = np.empty(MAX_EXTRA_NODES + 1, dtype=np.int64), np.empty(MAX_EXTRA_NODES + 1, dtype=np.int64)
    fits_alone, best_p = False, -1
    for n in range(len(free_gpus)):
        if nodes.kind[n] == kind and free_gpus[n] >= need:
            on[0], gpus_on[0] = n, need
            p = _find_fastest_point(gpus_on, on, 1, sets[shape[n]], left, nodes.host, points)
            fits_alone = True
            if p >= 0 and (best_p < 0 or speed[p] > speed[best_p]):
                best_p = p
    if not fits_alone or (best_p >= 0 and best_p == points.start[sets[shape[on[0]]] + 1] - 1):
        return -1
    target = _MIN_SPEEDUP * (speed[best_p] if best_p >= 0 else 1.0)
    best_more, best_point = 0, -1
    for more in range(1, min(MAX_EXTRA_NODES, need - 1) + 1):
        count = _take_most_cores(kind, more + 1, free, nodes, on)
        rest = need
        for a in range(count):
            gpus_on[a] = min(free_gpus[on[a]], -(-rest // (count - a)))
            rest -= gpus_on[a]
        if count <= more or rest > 0:
            continue
        point_set = spread[MAX_EXTRA_NODES * shape[on[0]] + more - 1]
        p = _find_fastest_point(gpus_on, on, count, point_set, left, nodes.host, points)
        if p >= 0 and speed[p] > target:
            target, best_more, best_point = speed[p], more, p
            for a in range(count):
                entries[ENTRY_NODE, at + a], entries[ENTRY_GPUS, at + a] = on[a], gpus_on[a]
    if best_point < 0:
        return -1
    end = at + best_more + 1
    for a in range(at, end):
        n, gpus = entries[ENTRY_NODE, a], entries[ENTRY_GPUS, a]
        free_gpus[n] -= gpus
        for h in range(3):
            left[h, n] -= gpus * points.host[h, best_point]
    sort_by_node(entries, at, end)
    return end


@inner
def find_point_set(entry_range: Ints, entries: Ints, nodes: HostNodes, sets: Ints, spread: Ints) -> int:
    """Return the point set of a job on its nodes; -1: they have several shapes or are too many."""
    first, gpus = entries[ENTRY_NODE, entry_range[0]], 0
    for a in range(entry_range[0], entry_range[1]):
        gpus += entries[ENTRY_GPUS, a]
        if nodes.shape[entries[ENTRY_NODE, a]] != nodes.shape[first]:
            return -1
    more = (entry_range[1] - entry_range[0]) - -(-gpus // nodes.gpus[first])
    if more > MAX_EXTRA_NODES:
        return -1
    return int(
        sets[nodes.shape[first]] if more == 0 else spread[MAX_EXTRA_NODES * nodes.shape[first] + more - 1]
    )
