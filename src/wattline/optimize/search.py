"""A better decision from a good one: single jobs go elsewhere, or two change places, while that helps."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import F1, F3, I1, INT, inner, kernel
from wattline.optimize.instance import Event, Schedule
from wattline.optimize.objective import Charges

_ROUNDS = 50


def improve(event: Event, charges: Charges, schedule: Schedule, rounds: int = _ROUNDS) -> Schedule:
    """*schedule* after moves that make it cheaper by *charges*, the best of each job first.

    A job takes another configuration, on any node that has the GPUs, or waits; or it changes configuration
    and node with another, who may be waiting.
    """
    config, node, worth = _improve(
        schedule.config,
        schedule.node,
        event.nodes,
        event.gpus,
        event.config_sort,
        event.config_gpus,
        charges.runs,
        charges.waits,
        rounds,
    )
    return Schedule(config, node, worth)


@inner
def _cost(sort: int, n: int, used: int, config: Ints, members: Ints, many: Ints, runs: Floats) -> float:
    """What the jobs of a node pay if so many of its GPUs are busy."""
    total = 0.0
    for a in range(many[sort, n]):
        j = members[sort, n, a]
        total += runs[j, config[j], used]
    return total


@inner
def _enter(j: int, sort: int, n: int, members: Ints, many: Ints) -> None:
    members[sort, n, many[sort, n]] = j
    many[sort, n] += 1


@inner
def _leave(j: int, sort: int, n: int, members: Ints, many: Ints) -> None:
    last = many[sort, n] - 1
    for a in range(last):
        if members[sort, n, a] == j:
            members[sort, n, a] = members[sort, n, last]
            break
    many[sort, n] = last


@inner
def put(
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
) -> None:
    """Let job *j* have configuration *c* on node *n*; -1: it waits."""
    if config[j] >= 0:
        sort = config_sort[config[j]]
        used[sort, node[j]] -= config_gpus[config[j]]
        _leave(j, sort, node[j], members, many)
    config[j], node[j] = c, n
    if c >= 0:
        used[config_sort[c], n] += config_gpus[c]
        _enter(j, config_sort[c], n, members, many)


@inner
def seated(
    start: Ints, start_node: Ints, nodes: Ints, gpus: Ints, config_sort: Ints, config_gpus: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Configuration and node of each job; busy GPUs, jobs and who they are by sort and node."""
    jobs = len(start)
    config, node = np.full(jobs, -1, dtype=np.int64), np.full(jobs, -1, dtype=np.int64)
    wide = max(1, nodes.max()) if len(nodes) > 0 else 1
    most = max(1, gpus.max()) if len(gpus) > 0 else 1
    used = np.zeros((len(nodes), wide), dtype=np.int64)
    many = np.zeros((len(nodes), wide), dtype=np.int64)
    members = np.empty((len(nodes), wide, most + 1), dtype=np.int64)
    for j in range(jobs):
        if start[j] >= 0:
            put(j, start[j], start_node[j], config, node, used, members, many, config_sort, config_gpus)
    return config, node, used, many, members


@inner
def _around(
    a: int,
    b: int,
    config: Ints,
    node: Ints,
    used: Ints,
    members: Ints,
    many: Ints,
    config_sort: Ints,
    runs: Floats,
    waits: Floats,
) -> float:
    """What two jobs and all on their nodes pay."""
    total = 0.0
    for turn in range(2):
        j = a if turn == 0 else b
        if config[j] < 0:
            total += waits[j]
            continue
        sort, n = config_sort[config[j]], node[j]
        if turn == 1 and config[a] >= 0 and config_sort[config[a]] == sort and node[a] == n:
            continue  # the same node
        total += _cost(sort, n, used[sort, n], config, members, many, runs)
    return total


@kernel(I1, I1, I1, I1, I1, I1, F3, F1, INT)
def _improve(
    start: Ints,
    start_node: Ints,
    nodes: Ints,
    gpus: Ints,
    config_sort: Ints,
    config_gpus: Ints,
    runs: Floats,
    waits: Floats,
    rounds: int,
) -> tuple[Ints, Ints, float]:
    jobs, configs = len(start), len(config_sort)
    config, node, used, many, members = seated(start, start_node, nodes, gpus, config_sort, config_gpus)
    for _ in range(rounds):
        moved = False
        for j in range(jobs):
            was, was_on = config[j], node[j]
            before = _around(j, j, config, node, used, members, many, config_sort, runs, waits)
            put(j, -1, -1, config, node, used, members, many, config_sort, config_gpus)
            left = 0.0  # what its node pays without it
            if was >= 0:
                sort = config_sort[was]
                left = _cost(sort, was_on, used[sort, was_on], config, members, many, runs)
            best, best_c, best_n = left + waits[j] - before, -1, -1
            for c in range(configs):
                sort = config_sort[c]
                for n in range(nodes[sort]):
                    then = used[sort, n] + config_gpus[c]
                    if then > gpus[sort] or not np.isfinite(runs[j, c, then]):
                        continue
                    change = runs[j, c, then] + _cost(sort, n, then, config, members, many, runs)
                    if was >= 0 and sort == config_sort[was] and n == was_on:
                        change -= before
                    else:
                        change -= _cost(sort, n, used[sort, n], config, members, many, runs)
                        change += left - before
                    if change < best - 1e-12:
                        best, best_c, best_n = change, c, n
                    if used[sort, n] == 0:
                        break  # other empty nodes are like this one
            if best < -1e-9 * (1.0 + abs(before)):
                moved = moved or best_c != was or best_n != was_on
            else:
                best_c, best_n = was, was_on
            put(j, best_c, best_n, config, node, used, members, many, config_sort, config_gpus)
        for a in range(jobs):
            for b in range(a + 1, jobs):
                ca, cb, na, nb = config[a], config[b], node[a], node[b]
                if ca == cb and (ca < 0 or na == nb):
                    continue
                if (cb >= 0 and not np.isfinite(runs[a, cb, config_gpus[cb]])) or (
                    ca >= 0 and not np.isfinite(runs[b, ca, config_gpus[ca]])
                ):
                    continue
                before = _around(a, b, config, node, used, members, many, config_sort, runs, waits)
                put(a, -1, -1, config, node, used, members, many, config_sort, config_gpus)
                put(b, ca, na, config, node, used, members, many, config_sort, config_gpus)
                put(a, cb, nb, config, node, used, members, many, config_sort, config_gpus)
                after = _around(a, b, config, node, used, members, many, config_sort, runs, waits)
                if after < before - 1e-9 * (1.0 + abs(before)):
                    moved = True
                    continue
                put(a, -1, -1, config, node, used, members, many, config_sort, config_gpus)
                put(b, cb, nb, config, node, used, members, many, config_sort, config_gpus)
                put(a, ca, na, config, node, used, members, many, config_sort, config_gpus)
        if not moved:
            break
    worth = 0.0
    for j in range(jobs):
        worth += waits[j] if config[j] < 0 else runs[j, config[j], used[config_sort[config[j]], node[j]]]
    return config, node, worth
