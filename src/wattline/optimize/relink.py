"""Path relinking: walk from the best of several good assignments towards each of the others."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Ints
from wattline.jit import I1, inner, kernel
from wattline.optimize.arrays import PROBLEM, ProblemArrays, build_arrays
from wattline.optimize.exact import postpone_all
from wattline.optimize.greedy import randomised
from wattline.optimize.instance import Assignment, Instance, limit_gpus
from wattline.optimize.objective import Charges
from wattline.optimize.search import Occupancy, build_occupancy, improve, move_job

_ROUNDS = 2  # of local search for all of the pool but the first, and for the results of walks
_WALKS = 2  # for each of the first pool: an assignment that joins it becomes a target too
_STUCK = -2  # node of a job that fits nowhere


def relink(
    instance: Instance, charges: Charges, tries: int = 1000, seed: int = 0, elites: int = 10
) -> Assignment:
    """Return the best by *charges* of a pool of good assignments and of the walks between them.

    The first of the pool is `randomised` with all *tries*, improved by local search; the others share as
    many tries, with at most 1, 2, … GPUs per job or no such limit, by turns. From the best a walk leads
    towards each: one job after the other takes the configuration that it has there, the cheapest change
    first, even if the cost rises. The best point of a walk is improved, and joins the pool if it is new and
    better than the worst.
    """
    if not instance.possible.any():
        return postpone_all(instance, charges)
    pool = _build_pool(instance, charges, tries, seed, max(1, elites))
    targets = pool[:]
    for _ in range(_WALKS * len(pool)):
        if not targets:
            break
        found = _walk_between(instance, charges, min(pool, key=_get_cost), targets.pop(0))
        worst = max(pool, key=_get_cost)
        if found.cost < worst.cost and _is_new(found, pool):
            pool[pool.index(worst)] = found
            targets.append(found)
    return improve(instance, charges, min(pool, key=_get_cost))


def _build_pool(instance: Instance, charges: Charges, tries: int, seed: int, elites: int) -> list[Assignment]:
    """Return good assignments that differ."""
    pool = [improve(instance, charges, randomised(instance, charges, tries, seed))]
    sizes = np.unique(instance.config_gpus[instance.possible.any(axis=0)]).tolist()
    for k in range(1, elites):
        frugal = limit_gpus(instance, sizes[(k - 1) % len(sizes)])
        start = randomised(frugal, charges, max(1, tries // elites), seed + k)
        found = improve(instance, charges, start, _ROUNDS)
        if _is_new(found, pool):
            pool.append(found)
    return pool


def _walk_between(instance: Instance, charges: Charges, start: Assignment, target: Assignment) -> Assignment:
    """Return the best point of a walk, improved; *start* if no job can move."""
    arrays = build_arrays(instance, charges)
    config, node, moves = _walk(start.config, start.node, target.config, arrays)
    return improve(instance, charges, Assignment(config, node), _ROUNDS) if moves else start


def _get_cost(assignment: Assignment) -> float:
    return assignment.cost


def _is_new(assignment: Assignment, pool: list[Assignment]) -> bool:
    """Return whether the configurations differ from those of each of *pool*."""
    return not any(np.array_equal(assignment.config, other.config) for other in pool)


@inner
def _find_best_fits(at: Occupancy, problem: ProblemArrays, fit: Ints) -> None:
    """Write into *fit*, by node type and number of GPUs, the node with so many free and the fewest beyond."""
    used, gpus = at.used, problem.gpus
    fit[:] = _STUCK
    for node_type in range(len(problem.node_counts)):
        for n in range(problem.node_counts[node_type]):
            for need in range(1, gpus[node_type] - used[node_type, n] + 1):
                if fit[node_type, need] < 0 or used[node_type, n] > used[node_type, fit[node_type, need]]:
                    fit[node_type, need] = n


@inner
def _has_room(j: int, c: int, n: int, at: Occupancy, problem: ProblemArrays) -> bool:
    """Return whether job *j* can have configuration *c* on node *n*, on which it may be already."""
    node_type, was = problem.config_node_type[c], at.config[j]
    then = at.used[node_type, n] + problem.config_gpus[c]
    if was >= 0 and problem.config_node_type[was] == node_type and at.node[j] == n:
        then -= problem.config_gpus[was]
    return bool(then <= problem.gpus[node_type])


@inner
def _sum_others(j: int, node_type: int, n: int, used: int, at: Occupancy, problem: ProblemArrays) -> float:
    """Return what the jobs of a node except *j* pay if so many of its GPUs are busy."""
    total = 0.0
    for a in range(at.job_count[node_type, n]):
        other = at.members[node_type, n, a]
        if other != j:
            total += problem.run_cost[other, at.config[other], used]
    return total


@inner
def _compute_change(j: int, c: int, n: int, at: Occupancy, problem: ProblemArrays) -> float:
    """Return how much the cost rises if job *j* takes configuration *c* on node *n*; -1: it waits."""
    config_node_type, config_gpus, run_cost = problem.config_node_type, problem.config_gpus, problem.run_cost
    was, total = at.config[j], 0.0
    stays = was >= 0 and c >= 0 and config_node_type[c] == config_node_type[was] and at.node[j] == n
    if was < 0:
        total -= problem.wait_cost[j]
    else:
        node_type, on = config_node_type[was], at.node[j]
        now = at.used[node_type, on]
        total -= run_cost[j, was, now] + _sum_others(j, node_type, on, now, at, problem)
        if not stays:
            total += _sum_others(j, node_type, on, now - config_gpus[was], at, problem)
    if c < 0:
        return float(total + problem.wait_cost[j])
    node_type = config_node_type[c]
    then = at.used[node_type, n] + config_gpus[c]
    if stays:
        then -= config_gpus[was]
    else:
        total -= _sum_others(j, node_type, n, at.used[node_type, n], at, problem)
    return float(total + run_cost[j, c, then] + _sum_others(j, node_type, n, then, at, problem))


@inner
def _find_nodes(target: Ints, at: Occupancy, problem: ProblemArrays, fit: Ints, goes: Ints) -> None:
    """Write into *goes* the node on which each job could have its *target*: its present one if possible."""
    _find_best_fits(at, problem, fit)
    for j in range(len(target)):
        c, was = target[j], at.config[j]
        goes[j] = -1
        if c < 0 or c == was:
            continue
        goes[j] = fit[problem.config_node_type[c], problem.config_gpus[c]]
        near = was >= 0 and problem.config_node_type[was] == problem.config_node_type[c]
        if near and _has_room(j, c, at.node[j], at, problem):
            goes[j] = at.node[j]


@inner
def _find_best_follower(
    node_type: int, n: int, target: Ints, goes: Ints, at: Occupancy, problem: ProblemArrays
) -> float:
    """Return the best change by a job that was stuck and now has room on this node; 0: none is cheaper."""
    best = 0.0
    for j in range(len(target)):
        c = target[j]
        if goes[j] != _STUCK or problem.config_node_type[c] != node_type:
            continue
        if _has_room(j, c, n, at, problem):
            best = min(best, _compute_change(j, c, n, at, problem))
    return best


@kernel(I1, I1, I1, PROBLEM)
def _walk(start: Ints, start_node: Ints, target: Ints, problem: ProblemArrays) -> tuple[Ints, Ints, int]:
    """Return the best point on the way from *start*, excluded, to *target*, and the number of moves."""
    jobs, most = len(start), problem.gpus.max()
    at = build_occupancy(start, start_node, problem)
    fit = np.empty((len(problem.node_counts), most + 1), dtype=np.int64)
    goes = np.empty(jobs, dtype=np.int64)
    best, best_node, best_cost = start.copy(), start_node.copy(), np.inf
    cost, moves = 0.0, 0  # beyond the cost of the start
    while True:
        _find_nodes(target, at, problem, fit, goes)
        least, first, by = np.inf, -1, 0.0
        for j in range(jobs):
            c, n, was, on = target[j], goes[j], at.config[j], at.node[j]
            if c == was or n == _STUCK:
                continue
            change = _compute_change(j, c, n, at, problem)
            ahead = 0.0
            if was >= 0:
                move_job(j, c, n, at, problem)
                ahead = _find_best_follower(problem.config_node_type[was], on, target, goes, at, problem)
                move_job(j, was, on, at, problem)
            if change + ahead < least:
                least, first, by = change + ahead, j, change
        if first < 0:
            break
        move_job(first, target[first], goes[first], at, problem)
        cost += by
        moves += 1
        if cost < best_cost:
            best_cost = cost
            best[:] = at.config
            best_node[:] = at.node
    return best, best_node, moves
