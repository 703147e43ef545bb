"""A better decision from several good ones: walk from the best towards each of the others."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import F1, F3, I1, inner, kernel
from wattline.optimize.exact import nobody
from wattline.optimize.greedy import randomised
from wattline.optimize.instance import Event, Schedule, at_most
from wattline.optimize.objective import Charges
from wattline.optimize.search import improve, put, seated

_ROUNDS = 2  # of local search for all of the pool but the first, and for what a walk finds
_WALKS = 2  # for each of the pool at the start: who joins it is a target too
_STUCK = -2  # where a job goes that fits nowhere


def relink(event: Event, charges: Charges, tries: int = 1000, seed: int = 0, elites: int = 10) -> Schedule:
    """The best by *charges* of a pool of good schedules, and of what lies between them.

    The first of the pool is what `improve` makes of `randomised` with all *tries*; the others share as many,
    and by turns nobody has more than 1, 2, … GPUs in them, or all they want. From the best a walk leads
    towards each: job by job takes the configuration it has there, the one that costs least first, even if it
    costs more. The best point of a walk is improved, and joins the pool if it is new and better than the
    worst.
    """
    if not event.possible.any():
        return nobody(event, charges)
    pool = _pool(event, charges, tries, seed, max(1, elites))
    targets = pool[:]
    for _ in range(_WALKS * len(pool)):
        if not targets:
            break
        found = _between(event, charges, min(pool, key=_worth), targets.pop(0))
        worst = max(pool, key=_worth)
        if found.worth < worst.worth and _is_new(found, pool):
            pool[pool.index(worst)] = found
            targets.append(found)
    return improve(event, charges, min(pool, key=_worth))


def _pool(event: Event, charges: Charges, tries: int, seed: int, elites: int) -> list[Schedule]:
    """Good schedules that differ."""
    pool = [improve(event, charges, randomised(event, charges, tries, seed))]
    sizes = np.unique(event.config_gpus[event.possible.any(axis=0)]).tolist()
    for k in range(1, elites):
        frugal = at_most(event, sizes[(k - 1) % len(sizes)])
        tried = randomised(frugal, charges, max(1, tries // elites), seed + k)
        found = improve(event, charges, tried, _ROUNDS)
        if _is_new(found, pool):
            pool.append(found)
    return pool


def _between(event: Event, charges: Charges, start: Schedule, target: Schedule) -> Schedule:
    """The best point of a walk, improved; *start*: nobody can move."""
    config, node, moves = _walk(
        start.config,
        start.node,
        target.config,
        event.nodes,
        event.gpus,
        event.config_sort,
        event.config_gpus,
        charges.runs,
        charges.waits,
    )
    return improve(event, charges, Schedule(config, node), _ROUNDS) if moves else start


def _worth(schedule: Schedule) -> float:
    return schedule.worth


def _is_new(schedule: Schedule, pool: list[Schedule]) -> bool:
    """Whether some job has another configuration than in each of *pool*."""
    return not any(np.array_equal(schedule.config, other.config) for other in pool)


@inner
def _best_fits(nodes: Ints, gpus: Ints, used: Ints, fit: Ints) -> None:
    """By sort and number of GPUs, the node with so many free and the fewest beyond; else stuck."""
    fit[:] = _STUCK
    for sort in range(len(nodes)):
        for n in range(nodes[sort]):
            for need in range(1, gpus[sort] - used[sort, n] + 1):
                if fit[sort, need] < 0 or used[sort, n] > used[sort, fit[sort, need]]:
                    fit[sort, need] = n


@inner
def _has_room(
    j: int,
    c: int,
    n: int,
    config: Ints,
    node: Ints,
    used: Ints,
    gpus: Ints,
    config_sort: Ints,
    config_gpus: Ints,
) -> bool:
    """Whether job *j* can have configuration *c* on node *n*, which it may be on."""
    sort = config_sort[c]
    then = used[sort, n] + config_gpus[c]
    if config[j] >= 0 and config_sort[config[j]] == sort and node[j] == n:
        then -= config_gpus[config[j]]
    return bool(then <= gpus[sort])


@inner
def _others(
    j: int, sort: int, n: int, used: int, config: Ints, members: Ints, many: Ints, runs: Floats
) -> float:
    """What the jobs of a node but *j* pay if so many of its GPUs are busy."""
    total = 0.0
    for a in range(many[sort, n]):
        other = members[sort, n, a]
        if other != j:
            total += runs[other, config[other], used]
    return total


@inner
def _change(
    j: int,
    c: int,
    n: int,
    config: Ints,
    node: Ints,
    used: Ints,
    members: Ints,
    many: Ints,
    config_sort: Ints,
    config_gpus: Ints,
    runs: Floats,
    waits: Floats,
) -> float:
    """What all pay more if job *j* takes configuration *c* on node *n*; -1: it waits."""
    was, total = config[j], 0.0
    stays = was >= 0 and c >= 0 and config_sort[c] == config_sort[was] and node[j] == n
    if was < 0:
        total -= waits[j]
    else:
        sort, on = config_sort[was], node[j]
        now = used[sort, on]
        total -= runs[j, was, now] + _others(j, sort, on, now, config, members, many, runs)
        if not stays:
            total += _others(j, sort, on, now - config_gpus[was], config, members, many, runs)
    if c < 0:
        return float(total + waits[j])
    sort = config_sort[c]
    then = used[sort, n] + config_gpus[c]
    if stays:
        then -= config_gpus[was]
    else:
        total -= _others(j, sort, n, used[sort, n], config, members, many, runs)
    return float(total + runs[j, c, then] + _others(j, sort, n, then, config, members, many, runs))


@inner
def _find_places(
    target: Ints,
    config: Ints,
    node: Ints,
    nodes: Ints,
    used: Ints,
    gpus: Ints,
    config_sort: Ints,
    config_gpus: Ints,
    fit: Ints,
    goes: Ints,
) -> None:
    """The node on which each job could have its configuration of the target: its own if it can be."""
    _best_fits(nodes, gpus, used, fit)
    for j in range(len(target)):
        c, was = target[j], config[j]
        goes[j] = -1
        if c < 0 or c == was:
            continue
        goes[j] = fit[config_sort[c], config_gpus[c]]
        near = was >= 0 and config_sort[was] == config_sort[c]
        if near and _has_room(j, c, node[j], config, node, used, gpus, config_sort, config_gpus):
            goes[j] = node[j]


@inner
def _ahead(
    sort: int,
    n: int,
    target: Ints,
    goes: Ints,
    config: Ints,
    node: Ints,
    used: Ints,
    members: Ints,
    many: Ints,
    gpus: Ints,
    config_sort: Ints,
    config_gpus: Ints,
    runs: Floats,
    waits: Floats,
) -> float:
    """The best change by a job that was stuck and now has room on this node; 0: none is for the better."""
    best = 0.0
    for j in range(len(target)):
        c = target[j]
        if goes[j] != _STUCK or config_sort[c] != sort:
            continue
        if _has_room(j, c, n, config, node, used, gpus, config_sort, config_gpus):
            change = _change(
                j, c, n, config, node, used, members, many, config_sort, config_gpus, runs, waits
            )
            best = min(best, change)
    return best


@kernel(I1, I1, I1, I1, I1, I1, I1, F3, F1)
def _walk(
    start: Ints,
    start_node: Ints,
    target: Ints,
    nodes: Ints,
    gpus: Ints,
    config_sort: Ints,
    config_gpus: Ints,
    runs: Floats,
    waits: Floats,
) -> tuple[Ints, Ints, int]:
    """The best point on the way from *start*, which is none, to *target*; and how many moves were made."""
    jobs, most = len(start), gpus.max()
    config, node, used, many, members = seated(start, start_node, nodes, gpus, config_sort, config_gpus)
    fit = np.empty((len(nodes), most + 1), dtype=np.int64)
    goes = np.empty(jobs, dtype=np.int64)
    best, best_node, best_worth = start.copy(), start_node.copy(), np.inf
    worth, moves = 0.0, 0  # beyond what the start costs
    while True:
        _find_places(target, config, node, nodes, used, gpus, config_sort, config_gpus, fit, goes)
        least, first, by = np.inf, -1, 0.0
        for j in range(jobs):
            c, n, was, on = target[j], goes[j], config[j], node[j]
            if c == was or n == _STUCK:
                continue
            change = _change(
                j, c, n, config, node, used, members, many, config_sort, config_gpus, runs, waits
            )
            ahead = 0.0
            if was >= 0:
                put(j, c, n, config, node, used, members, many, config_sort, config_gpus)
                ahead = _ahead(
                    config_sort[was],
                    on,
                    target,
                    goes,
                    config,
                    node,
                    used,
                    members,
                    many,
                    gpus,
                    config_sort,
                    config_gpus,
                    runs,
                    waits,
                )
                put(j, was, on, config, node, used, members, many, config_sort, config_gpus)
            if change + ahead < least:
                least, first, by = change + ahead, j, change
        if first < 0:
            break
        put(first, target[first], goes[first], config, node, used, members, many, config_sort, config_gpus)
        worth += by
        moves += 1
        if worth < best_worth:
            best_worth = worth
            best[:] = config
            best_node[:] = node
    return best, best_node, moves
