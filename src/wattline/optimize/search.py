"""Local search: move single jobs or swap two as long as the cost falls."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.table import Ints
from wattline.jit import I1, INT, inner, kernel
from wattline.optimize.arrays import PROBLEM, ProblemArrays, build_arrays
from wattline.optimize.instance import Assignment, Instance
from wattline.optimize.objective import Charges

_ROUNDS = 50


class Occupancy(NamedTuple):
    """An assignment that is being changed, and the jobs of each node."""

    config: Ints  # of each job; -1: it waits
    node: Ints  # of each job, counted within its type
    used: Ints  # busy GPUs by node type and node
    members: Ints  # jobs by node type and node; the first *job_count* entries are valid
    job_count: Ints  # number of jobs by node type and node


def improve(
    instance: Instance, charges: Charges, assignment: Assignment, rounds: int = _ROUNDS
) -> Assignment:
    """Return *assignment* after moves that lower its cost by *charges*, the best of each job first.

    A job takes another configuration, on any node that has the GPUs, or waits; or it exchanges configuration
    and node with another job, which may be waiting.
    """
    arrays = build_arrays(instance, charges)
    return Assignment(*_improve(assignment.config, assignment.node, arrays, rounds))


@inner
def _sum_node_cost(node_type: int, n: int, used: int, at: Occupancy, problem: ProblemArrays) -> float:
    """Return what the jobs of a node pay if so many of its GPUs are busy."""
    total = 0.0
    for a in range(at.job_count[node_type, n]):
        j = at.members[node_type, n, a]
        total += problem.run_cost[j, at.config[j], used]
    return total


@inner
def _add_member(j: int, node_type: int, n: int, at: Occupancy) -> None:
    at.members[node_type, n, at.job_count[node_type, n]] = j
    at.job_count[node_type, n] += 1


@inner
def _remove_member(j: int, node_type: int, n: int, at: Occupancy) -> None:
    last = at.job_count[node_type, n] - 1
    for a in range(last):
        if at.members[node_type, n, a] == j:
            at.members[node_type, n, a] = at.members[node_type, n, last]
            break
    at.job_count[node_type, n] = last


@inner
def move_job(j: int, c: int, n: int, at: Occupancy, problem: ProblemArrays) -> None:
    """Give job *j* configuration *c* on node *n*; -1: let it wait."""
    if at.config[j] >= 0:
        node_type = problem.config_node_type[at.config[j]]
        at.used[node_type, at.node[j]] -= problem.config_gpus[at.config[j]]
        _remove_member(j, node_type, at.node[j], at)
    at.config[j], at.node[j] = c, n
    if c >= 0:
        at.used[problem.config_node_type[c], n] += problem.config_gpus[c]
        _add_member(j, problem.config_node_type[c], n, at)


@inner
def build_occupancy(start: Ints, start_node: Ints, problem: ProblemArrays) -> Occupancy:
    """Return the occupancy of jobs with configurations *start* on nodes *start_node*."""
    jobs, node_counts, gpus = len(start), problem.node_counts, problem.gpus
    wide = max(1, node_counts.max()) if len(node_counts) > 0 else 1
    most = max(1, gpus.max()) if len(gpus) > 0 else 1
    at = Occupancy(
        np.full(jobs, -1, dtype=np.int64),
        np.full(jobs, -1, dtype=np.int64),
        np.zeros((len(node_counts), wide), dtype=np.int64),
        np.empty((len(node_counts), wide, most + 1), dtype=np.int64),
        np.zeros((len(node_counts), wide), dtype=np.int64),
    )
    for j in range(jobs):
        if start[j] >= 0:
            move_job(j, start[j], start_node[j], at, problem)
    return at


@inner
def _sum_cost_around(a: int, b: int, at: Occupancy, problem: ProblemArrays) -> float:
    """Return what two jobs and all others on their nodes pay."""
    config, node = at.config, at.node
    total = 0.0
    for turn in range(2):
        j = a if turn == 0 else b
        if config[j] < 0:
            total += problem.wait_cost[j]
            continue
        node_type, n = problem.config_node_type[config[j]], node[j]
        if turn == 1 and config[a] >= 0 and problem.config_node_type[config[a]] == node_type and node[a] == n:
            continue  # the same node
        total += _sum_node_cost(node_type, n, at.used[node_type, n], at, problem)
    return total


@inner
def move_to_best(j: int, at: Occupancy, problem: ProblemArrays) -> bool:
    """Move job *j* to where the sum of costs is least; return whether it has moved."""
    config_node_type, config_gpus, run_cost = problem.config_node_type, problem.config_gpus, problem.run_cost
    was, was_on = at.config[j], at.node[j]
    before = _sum_cost_around(j, j, at, problem)
    move_job(j, -1, -1, at, problem)
    left = 0.0  # cost of its node without it
    if was >= 0:
        node_type = config_node_type[was]
        left = _sum_node_cost(node_type, was_on, at.used[node_type, was_on], at, problem)
    best, best_c, best_n = left + problem.wait_cost[j] - before, -1, -1
    for c in range(len(config_node_type)):
        node_type = config_node_type[c]
        for n in range(problem.node_counts[node_type]):
            then = at.used[node_type, n] + config_gpus[c]
            if then > problem.gpus[node_type] or not np.isfinite(run_cost[j, c, then]):
                continue
            change = run_cost[j, c, then] + _sum_node_cost(node_type, n, then, at, problem)
            if was >= 0 and node_type == config_node_type[was] and n == was_on:
                change -= before
            else:
                change -= _sum_node_cost(node_type, n, at.used[node_type, n], at, problem)
                change += left - before
            if change < best - 1e-12:
                best, best_c, best_n = change, c, n
            if at.used[node_type, n] == 0:
                break  # all empty nodes of a type are the same
    moved = False
    if best < -1e-9 * (1.0 + abs(before)):
        moved = best_c != was or best_n != was_on
    else:
        best_c, best_n = was, was_on
    move_job(j, best_c, best_n, at, problem)
    return moved


@inner
def _swap_if_cheaper(a: int, b: int, at: Occupancy, problem: ProblemArrays) -> bool:
    """Exchange configuration and node of two jobs if that lowers the cost; return whether it did."""
    ca, cb, na, nb = at.config[a], at.config[b], at.node[a], at.node[b]
    if ca == cb and (ca < 0 or na == nb):
        return False
    if (cb >= 0 and not np.isfinite(problem.run_cost[a, cb, problem.config_gpus[cb]])) or (
        ca >= 0 and not np.isfinite(problem.run_cost[b, ca, problem.config_gpus[ca]])
    ):
        return False
    before = _sum_cost_around(a, b, at, problem)
    move_job(a, -1, -1, at, problem)
    move_job(b, ca, na, at, problem)
    move_job(a, cb, nb, at, problem)
    after = _sum_cost_around(a, b, at, problem)
    if after < before - 1e-9 * (1.0 + abs(before)):
        return True
    move_job(a, -1, -1, at, problem)
    move_job(b, cb, nb, at, problem)
    move_job(a, ca, na, at, problem)
    return False


@inner
def sum_cost(at: Occupancy, problem: ProblemArrays) -> float:
    """Return what all jobs pay."""
    cost = 0.0
    for j in range(len(at.config)):
        c = at.config[j]
        if c < 0:
            cost += problem.wait_cost[j]
        else:
            cost += problem.run_cost[j, c, at.used[problem.config_node_type[c], at.node[j]]]
    return cost


@kernel(I1, I1, PROBLEM, INT)
def _improve(start: Ints, start_node: Ints, problem: ProblemArrays, rounds: int) -> tuple[Ints, Ints, float]:
    """Return configurations, nodes and their cost after at most so many rounds of moves and swaps."""
    jobs = len(start)
    at = build_occupancy(start, start_node, problem)
    for _ in range(rounds):
        moved = False
        for j in range(jobs):
            moved = move_to_best(j, at, problem) or moved
        for a in range(jobs):
            for b in range(a + 1, jobs):
                moved = _swap_if_cheaper(a, b, at, problem) or moved
        if not moved:
            break
    return at.config, at.node, sum_cost(at, problem)
