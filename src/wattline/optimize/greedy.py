"""A good decision at once, and a better one by chance: who is pressed takes the cheapest that is in time."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import F1, F3, FLOAT, I1, I2, INT, inner, kernel
from wattline.optimize.instance import Event, Schedule
from wattline.optimize.objective import Charges

_SWAP = 0.05  # how much likelier than even it is that the heavier of two neighbours comes first
_CHOICE = 0.3  # of the configurations that are in time, so many are tried


def greedy(event: Event, charges: Charges) -> Schedule:
    """The schedule of `randomised` without any chance."""
    return randomised(event, charges, tries=1)


def randomised(event: Event, charges: Charges, tries: int = 1000, seed: int = 0) -> Schedule:
    """The best by *charges* of many schedules, the first of them without chance.

    Jobs come in the order of their pressure, now + what they take at least − when they are due; chance
    swaps neighbours. Each takes the cheapest configuration by itself in which it is in time, or else the
    fastest, of which a node has enough free GPUs: the one with the fewest. Chance takes another of the
    cheapest.
    """
    pressure = np.where(np.isfinite(event.fastest_s), event.now_s + event.fastest_s - event.due_s, -np.inf)
    order = np.argsort(-pressure, kind="stable").astype(np.int64)
    ranks, in_time = ranked(event)
    config, node, worth = _try(
        event.nodes,
        event.gpus,
        event.config_sort,
        event.config_gpus,
        ranks,
        in_time,
        order,
        event.late,
        charges.runs,
        charges.waits,
        tries,
        seed,
        _SWAP,
        _CHOICE,
    )
    return Schedule(config, node, worth)


def ranked(event: Event) -> tuple[Ints, Ints]:
    """By job its configurations, the best first, and -1 behind them; and how many of them are in time."""
    configs = np.arange(len(event.config_gpus))
    alone = event.known_s * event.share_s[:, configs, event.config_gpus]
    timely = event.possible & (event.now_s + event.left_s <= event.due_s[:, None])
    key = np.where(timely, alone, event.known_s)
    late = np.where(timely, 0, np.where(event.possible, 1, 2))
    order = np.lexsort((key, late), axis=1) if event.jobs else np.empty(event.left_s.shape, dtype=np.int64)
    ranks = np.where(np.take_along_axis(late, order, axis=1) < 2, order, -1)
    return np.ascontiguousarray(ranks.astype(np.int64)), timely.sum(axis=1).astype(np.int64)


@inner
def _best_fit(sort: int, need: int, nodes: Ints, gpus: Ints, used: Ints) -> int:
    """The node of a sort with *need* free GPUs and the fewest beyond; -1: there is none."""
    best = -1
    for n in range(nodes[sort]):
        free = gpus[sort] - used[sort, n]
        if free >= need and (best < 0 or used[sort, n] > used[sort, best]):
            best = n
            if free == need:
                break
        if used[sort, n] == 0 and best >= 0:
            break  # nodes are opened one after the other
    return best


@kernel(I1, I1, I1, I1, I2, I1, I1, F1, F3, F1, INT, INT, FLOAT, FLOAT)
def _try(
    nodes: Ints,
    gpus: Ints,
    config_sort: Ints,
    config_gpus: Ints,
    ranks: Ints,
    in_time: Ints,
    order: Ints,
    late: Floats,
    runs: Floats,
    waits: Floats,
    tries: int,
    seed: int,
    swap: float,
    choice: float,
) -> tuple[Ints, Ints, float]:
    jobs = len(order)
    np.random.seed(seed)
    best = np.full(jobs, -1, dtype=np.int64)
    best_node = np.full(jobs, -1, dtype=np.int64)
    best_worth = np.inf
    config, node = np.empty(jobs, dtype=np.int64), np.empty(jobs, dtype=np.int64)
    line = order.copy()
    used = np.zeros((len(nodes), max(1, nodes.max())), dtype=np.int64)
    total = (nodes * gpus).sum()
    for t in range(tries):
        line[:] = order
        for a in range(jobs - 1 if t > 0 else 0):
            first = late[line[a]] >= late[line[a + 1]]
            if np.random.random() < (0.5 - swap if first else 0.5 + swap):
                line[a], line[a + 1] = line[a + 1], line[a]
        used[:] = 0
        free = total
        config[:] = -1
        node[:] = -1
        for a in range(jobs):
            if free == 0:
                break
            j = line[a]
            skip = 0
            if t > 0 and in_time[j] > 1:
                skip = int(np.random.random() * max(1.0, np.round(choice * in_time[j])))
            for k in range(ranks.shape[1]):
                c = ranks[j, (k + skip) % in_time[j] if k < in_time[j] else k]
                if c < 0:
                    break
                n = _best_fit(config_sort[c], config_gpus[c], nodes, gpus, used)
                if n >= 0:
                    config[j], node[j] = c, n
                    used[config_sort[c], n] += config_gpus[c]
                    free -= config_gpus[c]
                    break
        worth = 0.0
        for j in range(jobs):
            if config[j] < 0:
                worth += waits[j]
            else:
                worth += runs[j, config[j], used[config_sort[config[j]], node[j]]]
        if worth < best_worth:
            best_worth = worth
            best[:] = config
            best_node[:] = node
    return best, best_node, best_worth
