"""Where a job goes that needs something of the host beside its GPUs."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import inner
from wattline.models.sensitivity import SPREADS

_CLEARLY = 1.05  # times as fast is worth being on more nodes
_MUCH = 100.0  # better than any other node is one that has all


@inner
def _by_node(seats: Ints, start: int, end: int) -> None:
    """Sort entries *start* to *end*: leases list nodes in ascending order."""
    for a in range(start + 1, end):
        b = a
        while b > start and seats[0, b - 1] > seats[0, b]:
            for c in range(2):
                seats[c, b - 1], seats[c, b] = seats[c, b], seats[c, b - 1]
            b -= 1


@inner
def _lack(free: int, left: Ints, cap: Ints, share: Ints) -> float:
    """How much of a node's host the GPUs that are free there miss, if each of them will want its share."""
    lack = 0.0
    for h in range(len(cap)):
        if cap[h] > 0:
            lack += max(0.0, float(free * share[h] - left[h])) / cap[h]
    return lack


@inner
def _best_node(
    need: int,
    kind: int,
    wants: Ints,
    free: Ints,
    left: Ints,
    wakes_s: Floats,
    node_kind: Ints,
    node_host: Ints,
    share: Ints,
) -> int:
    """The node with *need* free GPUs and as much of the host as the job wants, and least more of it.

    Where nobody has that, the one on which others lack least, or profit most, if the job goes there. Of
    equals the one with fewest free GPUs, then the one that is up first; -1: none has as many.
    """
    best, best_more, after = -1, 0.0, np.empty(3, dtype=np.int64)
    for n in range(len(free)):
        if node_kind[n] != kind or free[n] < need:
            continue
        for h in range(3):
            after[h] = left[h, n] - need * wants[h]
        fits, over = True, 0.0
        for h in range(3):
            if node_host[h, n] > 0:
                fits = fits and after[h] >= 0
                over += after[h] / node_host[h, n]
        if fits:
            more = over - _MUCH
        else:
            more = _lack(free[n] - need, after, node_host[:, n], share[:, n])
            more -= _lack(free[n], left[:, n], node_host[:, n], share[:, n])
        if best >= 0:
            if more > best_more + 1e-9:
                continue
            same = more > best_more - 1e-9
            if same and (free[n] > free[best] or (free[n] == free[best] and wakes_s[n] >= wakes_s[best])):
                continue
        best, best_more = n, more
    return best


@inner
def find_seats(
    need: int,
    kind: int,
    wants: Ints,
    free: Ints,
    left: Ints,
    wakes_s: Floats,
    node_kind: Ints,
    node_host: Ints,
    share: Ints,
    seats: Ints,
    at: int,
) -> int:
    """Seats for *need* GPUs: one node, or else the fewest; answers the entry after the last."""
    start = at
    while need > 0:
        n = _best_node(need, kind, wants, free, left, wakes_s, node_kind, node_host, share)
        if n < 0:  # it spans nodes: the one with most room first
            for m in range(len(free)):
                if node_kind[m] == kind and (n < 0 or free[m] > free[n]):
                    n = m
        take = min(need, free[n])
        free[n] -= take
        need -= take
        for h in range(3):
            left[h, n] -= take * wants[h]
        seats[0, at], seats[1, at] = n, take
        at += 1
    _by_node(seats, start, at)
    return at


@inner
def _fastest(
    gpus_on: Ints, on: Ints, count: int, s: int, left: Ints, cap: Ints, first: Ints, host: Ints, speed: Floats
) -> int:
    """The fastest point of set *s* for which the first *count* nodes *on* have enough left; -1: none."""
    best = -1
    for p in range(first[s], first[s + 1]):
        fits = best < 0 or speed[p] > speed[best]
        for a in range(count):
            for h in range(3):
                fits = fits and (cap[h, on[a]] == 0 or gpus_on[a] * host[h, p] <= left[h, on[a]])
        if fits:
            best = p
    return best


@inner
def spread_seats(
    need: int,
    kind: int,
    sets: Ints,
    spread: Ints,
    free: Ints,
    left: Ints,
    node_kind: Ints,
    node_gpus: Ints,
    node_host: Ints,
    shape: Ints,
    first: Ints,
    host: Ints,
    speed: Floats,
    seats: Ints,
    at: int,
) -> int:
    """Seats on more nodes than a job needs, if with more of their hosts it is clearly faster there.

    Answers the entry after the last; -1: it is better off on one node, or cannot be on one.
    """
    on, gpus_on = np.empty(SPREADS + 1, dtype=np.int64), np.empty(SPREADS + 1, dtype=np.int64)
    alone = best_p = -1
    for n in range(len(free)):
        if node_kind[n] == kind and free[n] >= need:
            on[0], gpus_on[0] = n, need
            p = _fastest(gpus_on, on, 1, sets[shape[n]], left, node_host, first, host, speed)
            alone = max(alone, 0)
            if p >= 0 and (best_p < 0 or speed[p] > speed[best_p]):
                best_p = p
    if alone < 0 or (best_p >= 0 and best_p == first[sets[shape[on[0]]] + 1] - 1):
        return -1
    target = _CLEARLY * (speed[best_p] if best_p >= 0 else 1.0)
    best_more, found = 0, -1
    for more in range(1, min(SPREADS, need - 1) + 1):
        count = 0
        while count <= more:  # the nodes with most cores left, all of one shape
            next_n = -1
            for n in range(len(free)):
                taken = node_kind[n] != kind or free[n] == 0 or (count > 0 and shape[n] != shape[on[0]])
                for a in range(count):
                    taken = taken or on[a] == n
                if not taken and (next_n < 0 or left[0, n] > left[0, next_n]):
                    next_n = n
            if next_n < 0:
                break
            on[count] = next_n
            count += 1
        rest = need
        for a in range(count):
            gpus_on[a] = min(free[on[a]], -(-rest // (count - a)))
            rest -= gpus_on[a]
        if count <= more or rest > 0:
            continue
        p = _fastest(
            gpus_on, on, count, spread[SPREADS * shape[on[0]] + more - 1], left, node_host, first, host, speed
        )
        if p >= 0 and speed[p] > target:
            target, best_more, found = speed[p], more, p
            for a in range(count):
                seats[0, at + a], seats[1, at + a] = on[a], gpus_on[a]
    if found < 0:
        return -1
    end = at + best_more + 1
    for a in range(at, end):
        free[seats[0, a]] -= seats[1, a]
        for h in range(3):
            left[h, seats[0, a]] -= seats[1, a] * host[h, found]
    _by_node(seats, at, end)
    return end


@inner
def set_of(seat_at: Ints, seats: Ints, node_gpus: Ints, shape: Ints, sets: Ints, spread: Ints) -> int:
    """The set of a job where it is; -1: on nodes of several shapes, or on too many, nothing is known."""
    n, gpus = seats[0, seat_at[0]], 0
    for a in range(seat_at[0], seat_at[1]):
        gpus += seats[1, a]
        if shape[seats[0, a]] != shape[n]:
            return -1
    more = (seat_at[1] - seat_at[0]) - -(-gpus // node_gpus[n])
    if more > SPREADS:
        return -1
    return int(sets[shape[n]] if more == 0 else spread[SPREADS * shape[n] + more - 1])
