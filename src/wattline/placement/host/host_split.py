"""Who gets what of a node's host."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Bools, Floats, Ints
from wattline.jit import inner


@inner
def divide(
    tenants: Ints,
    gpus_on: Ints,
    count: int,
    node_sets: Ints,
    left: Ints,
    cap: Ints,
    first: Ints,
    host: Ints,
    speed: Floats,
    point: Ints,
) -> float:
    """Share what is *left* of one node out to its first *count* tenants; answers the sum of their speeds.

    First everybody gets the least that makes it as fast as its share, then who gains most for what it
    takes is given the step that does so, as long as there is one. Writes the *point* of each.
    """
    for a in range(count):
        point[a] = first[node_sets[tenants[a]]]
        for h in range(3):
            left[h] -= gpus_on[a] * host[h, point[a]]
    while True:
        best, best_point, best_worth = -1, -1, 0.0  # the first to gain anything is better than nobody
        for a in range(count):
            for p in range(point[a] + 1, first[node_sets[tenants[a]] + 1]):
                gain = speed[p] - speed[point[a]]
                if gain <= 1e-9:
                    continue
                cost, fits = 0.0, True
                for h in range(3):
                    more = gpus_on[a] * (host[h, p] - host[h, point[a]])
                    if cap[h] > 0 and more > 0:
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
            left[h] -= gpus_on[best] * (host[h, best_point] - host[h, point[best]])
        point[best] = best_point
    total = 0.0
    for a in range(count):
        total += speed[point[a]]
    return total


@inner
def _has_twin(a: int, start: int, tenants: Ints, runs: Bools, node_sets: Ints) -> bool:
    """Whether one of the tenants before *a* on its node is like it, so that trying both is vain."""
    twin = False
    for c in range(start, a):
        twin = twin or (node_sets[tenants[c]] == node_sets[tenants[a]] and runs[c] == runs[a])
    return twin


@inner
def _may_gain(
    a: int,
    b: int,
    gpus: int,
    sets_a: int,
    left_b: Ints,
    cap_b: Ints,
    point: Ints,
    first: Ints,
    host: Ints,
    speed: Floats,
) -> bool:
    """Whether tenant *a* could be faster in the place of *b*: the rest may still be in the way."""
    for p in range(point[a] + 1, first[sets_a + 1]):
        fits = speed[p] > speed[point[a]] + 1e-9
        for h in range(3):
            fits = fits and (cap_b[h] == 0 or gpus * host[h, p] <= left_b[h] + gpus * host[h, point[b]])
        if fits:
            return True
    return False


@inner
def swap(
    on: Ints,
    tenants: Ints,
    gpus_on: Ints,
    point: Ints,
    worth: Floats,
    runs: Bools,
    move: float,
    spare: Ints,
    left: Ints,
    node_kind: Ints,
    node_host: Ints,
    shape: Ints,
    sets: Ints,
    first: Ints,
    host: Ints,
    speed: Floats,
) -> bool:
    """Let two tenants of different nodes change places where that helps most; answers whether one pair did.

    All together must gain *move* in speed for each of the two that runs already, because it has to restart.
    """
    widest = 0
    for n in range(len(worth)):
        widest = max(widest, on[n + 1] - on[n])
    points = np.empty((2, widest), dtype=np.int64)
    lefts = np.empty((2, 3), dtype=np.int64)
    best, best_a, best_b = 0.0, -1, -1
    for n in range(len(worth)):
        for a in range(on[n], on[n + 1]):
            i, set_a = tenants[a], sets[tenants[a], shape[n]]
            if speed[point[a]] >= speed[first[set_a + 1] - 1] - 1e-9:
                continue  # it has all that it wants
            if _has_twin(a, on[n], tenants, runs, sets[:, shape[n]]):
                continue
            for m in range(len(worth)):
                if m == n or node_kind[m] != node_kind[n]:
                    continue
                for b in range(on[m], on[m + 1]):
                    j = tenants[b]
                    if gpus_on[b] != gpus_on[a] or sets[j, shape[m]] == sets[i, shape[m]]:
                        continue
                    if _has_twin(b, on[m], tenants, runs, sets[:, shape[m]]) or not _may_gain(
                        a,
                        b,
                        gpus_on[a],
                        sets[i, shape[m]],
                        left[:, m],
                        node_host[:, m],
                        point,
                        first,
                        host,
                        speed,
                    ):
                        continue
                    tenants[a], tenants[b] = j, i
                    after = 0.0
                    for k in range(2):
                        here = n if k == 0 else m
                        for h in range(3):
                            lefts[k, h] = spare[h, here]
                        after += divide(
                            tenants[on[here] :],
                            gpus_on[on[here] :],
                            on[here + 1] - on[here],
                            sets[:, shape[here]],
                            lefts[k],
                            node_host[:, here],
                            first,
                            host,
                            speed,
                            points[k],
                        )
                    tenants[a], tenants[b] = i, j
                    gain = after - worth[n] - worth[m] - move * (int(runs[a]) + int(runs[b]))
                    if gain > best + 1e-6:
                        best, best_a, best_b = gain, a, b
    if best_a < 0:
        return False
    tenants[best_a], tenants[best_b] = tenants[best_b], tenants[best_a]
    runs[best_a] = runs[best_b] = False
    return True


@inner
def spread_out(
    least: int, end: int, seat_at: Ints, seats: Ints, left: Ints, node_host: Ints, host: Ints, speed: Floats
) -> int:
    """The fastest point for which all nodes of a job that spans them have enough left beyond the *least*."""
    best = least
    for p in range(least + 1, end):
        fits = speed[p] > speed[best]
        for a in range(seat_at[0], seat_at[1]):
            for h in range(3):
                more = seats[1, a] * (host[h, p] - host[h, least])
                fits = fits and (more <= 0 or node_host[h, seats[0, a]] == 0 or more <= left[h, seats[0, a]])
        if fits:
            best = p
    for a in range(seat_at[0], seat_at[1]):
        for h in range(3):
            left[h, seats[0, a]] -= seats[1, a] * (host[h, best] - host[h, least])
    return best
