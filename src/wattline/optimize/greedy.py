"""Greedy and randomised greedy: the most pressed job takes its cheapest configuration that is in time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import F1, FLOAT, I1, I2, INT, inner, kernel, record
from wattline.optimize.arrays import PROBLEM, ProblemArrays, build_arrays
from wattline.optimize.instance import Assignment, Instance
from wattline.optimize.objective import Charges

_SWAP = 0.05  # added to the even chance that the heavier of two neighbours comes first
_CHOICE = 0.3  # share of the configurations in time that the random choice takes in


class _Preferences(NamedTuple):
    """Order of the jobs, and of the configurations of each; see `rank_configurations`."""

    ranks: Ints
    in_time: Ints
    order: Ints
    late_per_s: Floats


def greedy(instance: Instance, charges: Charges) -> Assignment:
    """Return the assignment of `randomised` without any chance."""
    return randomised(instance, charges, tries=1)


def randomised(instance: Instance, charges: Charges, tries: int = 1000, seed: int = 0) -> Assignment:
    """Return the best by *charges* of many assignments, the first of them without chance.

    Jobs come in the order of their pressure: now + least remaining time − due date; chance swaps
    neighbours. Each takes its cheapest configuration that is in time, or else its fastest, for which a node
    has enough free GPUs: the node with the fewest. Chance takes another of the cheapest.
    """
    finite = np.isfinite(instance.fastest_s)
    pressure = np.where(finite, instance.now_s + instance.fastest_s - instance.due_s, -np.inf)
    order = np.argsort(-pressure, kind="stable").astype(np.int64)
    preferences = _Preferences(*rank_configurations(instance), order, instance.late_per_s)
    return Assignment(*_try_many(build_arrays(instance, charges), preferences, tries, seed, _SWAP, _CHOICE))


def rank_configurations(instance: Instance) -> tuple[Ints, Ints]:
    """Return by job its configurations, the best first, and -1 behind them; and how many are in time."""
    configs = np.arange(len(instance.config_gpus))
    alone = instance.finite_left_s * instance.job_cost_per_s[:, configs, instance.config_gpus]
    timely = instance.possible & (instance.now_s + instance.left_s <= instance.due_s[:, None])
    key = np.where(timely, alone, instance.finite_left_s)
    late = np.where(timely, 0, np.where(instance.possible, 1, 2))
    order = (
        np.lexsort((key, late), axis=1) if instance.jobs else np.empty(instance.left_s.shape, dtype=np.int64)
    )
    ranks = np.where(np.take_along_axis(late, order, axis=1) < 2, order, -1)
    return np.ascontiguousarray(ranks.astype(np.int64)), timely.sum(axis=1).astype(np.int64)


@inner
def _find_best_fit(node_type: int, need: int, used: Ints, problem: ProblemArrays) -> int:
    """Return the node of a type with *need* free GPUs and the fewest beyond; -1: there is none."""
    best = -1
    for n in range(problem.node_counts[node_type]):
        free = problem.gpus[node_type] - used[node_type, n]
        if free >= need and (best < 0 or used[node_type, n] > used[node_type, best]):
            best = n
            if free == need:
                break
        if used[node_type, n] == 0 and best >= 0:
            break  # nodes are opened one after the other
    return best


@kernel(PROBLEM, record(_Preferences, I2, I1, I1, F1), INT, INT, FLOAT, FLOAT)
def _try_many(
    problem: ProblemArrays, preferences: _Preferences, tries: int, seed: int, swap: float, choice: float
) -> tuple[Ints, Ints, float]:
    """Return configurations, nodes and cost of the best of so many tries."""
    config_node_type, config_gpus = problem.config_node_type, problem.config_gpus
    ranks, in_time, order, late_per_s = preferences
    jobs = len(order)
    np.random.seed(seed)
    best = np.full(jobs, -1, dtype=np.int64)
    best_node = np.full(jobs, -1, dtype=np.int64)
    best_cost = np.inf
    config, node = np.empty(jobs, dtype=np.int64), np.empty(jobs, dtype=np.int64)
    line = order.copy()
    used = np.zeros((len(problem.node_counts), max(1, problem.node_counts.max())), dtype=np.int64)
    total = (problem.node_counts * problem.gpus).sum()
    for t in range(tries):
        line[:] = order
        for a in range(jobs - 1 if t > 0 else 0):
            first = late_per_s[line[a]] >= late_per_s[line[a + 1]]
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
                n = _find_best_fit(config_node_type[c], config_gpus[c], used, problem)
                if n >= 0:
                    config[j], node[j] = c, n
                    used[config_node_type[c], n] += config_gpus[c]
                    free -= config_gpus[c]
                    break
        cost = 0.0
        for j in range(jobs):
            if config[j] < 0:
                cost += problem.wait_cost[j]
            else:
                cost += problem.run_cost[j, config[j], used[config_node_type[config[j]], node[j]]]
        if cost < best_cost:
            best_cost = cost
            best[:] = config
            best_node[:] = node
    return best, best_node, best_cost
