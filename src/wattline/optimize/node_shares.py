"""Assignment by shares of nodes: for few jobs on many nodes, with a tight lower bound.

A job with g of the u busy GPUs of its node has the share g/u of that node, and the shares of all jobs add up
to a whole number, the nodes in use. A dynamic programme over the fraction of that sum finds the cheapest
slots that keep this rule, whatever jobs they are shared with. Where nodes are not scarce, what decides the
cost is the one node that cannot be filled, and the rule is nearly all there is to it.
"""

from __future__ import annotations

import math

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import FLOAT, INT, inner, kernel
from wattline.optimize.arrays import PROBLEM, ProblemArrays, build_arrays
from wattline.optimize.instance import Assignment, Instance
from wattline.optimize.objective import Charges
from wattline.optimize.search import improve

_MOST_UNITS = 5_040  # of a node: 840 divide a node of 8 GPUs, 2,520 one of 10
_ROUNDING = 1e-12  # relative, of sums in another order
_WAIT = -1
_NO_SLOT = -2


def assign_by_shares(instance: Instance, charges: Charges, known: Assignment) -> Assignment:
    """Return an assignment near the cheapest by *charges*, and a lower bound of all assignments.

    *known* is any assignment with its cost: slots that cannot be part of a cheaper one are left out. The
    result is *known* with its own bound if nodes have too many GPUs for the programme.
    """
    units = math.lcm(*range(1, int(instance.gpus.max(initial=1)) + 1))
    if units > _MOST_UNITS:
        return known
    arrays = build_arrays(instance, charges)
    config, node, bound = _assign(arrays, known.cost + _ROUNDING * abs(known.cost), units)
    found = improve(instance, charges, Assignment(config, node))
    return Assignment(found.config, found.node, found.cost, bound)


@inner
def _find_least(problem: ProblemArrays) -> Floats:
    """Return the cost of each job in its cheapest slot, or of its waiting."""
    least = problem.wait_cost.copy()
    jobs, configs, wide = problem.run_cost.shape
    for j in range(jobs):
        for c in range(configs):
            for used in range(problem.config_gpus[c], wide):
                least[j] = min(least[j], problem.run_cost[j, c, used])
    return least


@inner
def _add_slot(
    extra: float, share: int, slot: int, most: float, cost: Floats, after: Floats, how: Ints
) -> None:
    """Offer a slot with cost *extra* and *share* to all sums of shares that then cost at most *most*."""
    units = len(cost)
    for total in range(units):
        then = cost[total] + extra
        if then <= most:
            at = total + share
            if at >= units:
                at -= units
            if then < after[at]:
                after[at] = then
                how[at] = slot


@inner
def _choose_slots(
    problem: ProblemArrays, most_cost: float, units: int, config: Ints, used_gpus: Ints
) -> float:
    """Write configuration and busy GPUs of each job's slot; return the lower bound.

    -1: the job waits, and all do if no choice costs at most *most_cost*, which then is the bound.
    """
    jobs, configs, wide = problem.run_cost.shape
    least = _find_least(problem)
    base = least.sum()
    most = most_cost - base
    cost = np.full(units, np.inf)  # beyond the cheapest slots, by the fraction of the sum of shares
    after = np.empty(units)
    how = np.full((jobs, units), _NO_SLOT, dtype=np.int32)
    cost[0] = 0.0
    for j in range(jobs):
        after[:] = np.inf
        extra = problem.wait_cost[j] - least[j]
        if extra <= most:
            _add_slot(extra, 0, _WAIT, most, cost, after, how[j])
        for c in range(configs):
            for used in range(problem.config_gpus[c], wide):
                extra = problem.run_cost[j, c, used] - least[j]
                if extra <= most:
                    share = problem.config_gpus[c] * units // used % units
                    _add_slot(extra, share, c * wide + used, most, cost, after, how[j])
        cost, after = after, cost
    config[:] = -1
    if not np.isfinite(cost[0]):
        return most_cost
    total = 0
    for j in range(jobs - 1, -1, -1):
        slot = how[j, total]
        if slot >= 0:
            config[j], used_gpus[j] = slot // wide, slot % wide
            share = problem.config_gpus[config[j]] * units // used_gpus[j] % units
            total = (total - share) % units
    return float(base + cost[0])


@kernel(PROBLEM, FLOAT, INT)
def _assign(problem: ProblemArrays, most_cost: float, units: int) -> tuple[Ints, Ints, float]:
    """Return configurations, nodes and the lower bound.

    Jobs with slots of equally busy nodes go to nodes together, the largest first; those for which no node is
    left wait.
    """
    jobs = len(problem.wait_cost)
    config, node = np.full(jobs, -1, dtype=np.int64), np.full(jobs, -1, dtype=np.int64)
    used_gpus = np.zeros(jobs, dtype=np.int64)
    bound = _choose_slots(problem, most_cost, units, config, used_gpus)
    size = np.zeros(jobs, dtype=np.int64)
    for j in range(jobs):
        size[j] = problem.config_gpus[config[j]] if config[j] >= 0 else 0
    order = np.argsort(-size, kind="mergesort")
    opened = np.zeros(len(problem.node_counts), dtype=np.int64)
    for t in range(len(problem.node_counts)):
        free = np.zeros(problem.node_counts[t], dtype=np.int64)
        for used in range(problem.gpus[t], 0, -1):
            first = opened[t]
            for j in order:
                if config[j] < 0 or used_gpus[j] != used or problem.config_node_type[config[j]] != t:
                    continue
                n = first
                while n < opened[t] and free[n] < size[j]:
                    n += 1
                if n == problem.node_counts[t]:
                    config[j] = -1
                    continue
                if n == opened[t]:
                    free[n] = used
                    opened[t] += 1
                free[n] -= size[j]
                node[j] = n
    return config, node, bound
