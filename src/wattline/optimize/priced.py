"""Assignment by prices of GPUs: quick with thousands of jobs, and with a lower bound."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import INT, inner, kernel
from wattline.optimize.arrays import PROBLEM, ProblemArrays, build_arrays
from wattline.optimize.instance import Assignment, Instance
from wattline.optimize.objective import Charges
from wattline.optimize.search import build_occupancy, move_to_best, sum_cost

_PASSES = 3  # over the node types, to find their prices
_HALVINGS = 40  # of the interval of a price


def assign_by_prices(instance: Instance, charges: Charges) -> Assignment:
    """Return an assignment near the cheapest by *charges*, and a lower bound of all assignments.

    GPUs of a node type that is in excess demand get a price, the least at which they suffice. Each job takes
    the configuration that is cheapest with these prices, as if its node had the busy GPUs that are best for
    it. Jobs then go to nodes, the largest first, each where the fewest GPUs are left over; jobs on nodes that
    are not full may move once more. The bound is the cost before jobs go to nodes, less the value of all
    GPUs (Lagrange's); it holds at any prices. All steps are bounded by counts: about jobs × configurations
    for each price, and jobs × nodes for the last moves.
    """
    arrays = build_arrays(instance, charges)
    return Assignment(*_assign(arrays, _PASSES, _HALVINGS))


@inner
def _find_least(problem: ProblemArrays, least: Floats) -> None:
    """Write into *least* the cost by job and configuration with the best number of busy GPUs; inf: none.

    A node has at most the GPUs busy that the job and all others can use together: this makes the bound of
    few jobs tight.
    """
    jobs, configs, wide = problem.run_cost.shape
    most = np.zeros(jobs, dtype=np.int64)
    for j in range(jobs):
        for c in range(configs):
            if np.isfinite(problem.run_cost[j, c, problem.config_gpus[c]]):
                most[j] = max(most[j], problem.config_gpus[c])
    together = most.sum()
    for j in range(jobs):
        for c in range(configs):
            low = np.inf
            for u in range(min(wide, problem.config_gpus[c] + together - most[j] + 1)):
                low = min(low, problem.run_cost[j, c, u])
            least[j, c] = low


@inner
def _choose(problem: ProblemArrays, least: Floats, price: Floats, config: Ints, demand: Ints) -> float:
    """Write the choice of each job at *price* and the GPUs requested by node type; return the lower bound."""
    bound = 0.0
    demand[:] = 0
    for j in range(len(config)):
        low, best = problem.wait_cost[j], -1
        for c in range(least.shape[1]):
            cost = least[j, c] + price[problem.config_node_type[c]] * problem.config_gpus[c]
            if cost < low:
                low, best = cost, c
        config[j] = best
        bound += low
        if best >= 0:
            demand[problem.config_node_type[best]] += problem.config_gpus[best]
    for node_type in range(len(price)):
        bound -= price[node_type] * problem.gpus[node_type] * problem.node_counts[node_type]
    return bound


@inner
def _find_prices(
    problem: ProblemArrays, least: Floats, passes: int, halvings: int, config: Ints, price: Floats
) -> float:
    """Write the least prices at which GPUs suffice, and the choices of jobs; return the best lower bound."""
    types = len(problem.node_counts)
    demand = np.zeros(types, dtype=np.int64)
    room = problem.gpus * problem.node_counts
    bound = _choose(problem, least, price, config, demand)
    if (demand <= room).all():
        return bound
    most = 1.0
    for j in range(len(config)):
        most = max(most, problem.wait_cost[j])
    for _ in range(passes):
        for t in range(types):
            price[t] = 0.0
            bound = max(bound, _choose(problem, least, price, config, demand))
            if demand[t] <= room[t]:
                continue
            low, high = 0.0, most
            for _ in range(halvings):
                price[t] = 0.5 * (low + high)
                bound = max(bound, _choose(problem, least, price, config, demand))
                if demand[t] <= room[t]:
                    high = price[t]
                else:
                    low = price[t]
            price[t] = high
            bound = max(bound, _choose(problem, least, price, config, demand))
        if (demand <= room).all():
            break
    return bound


@inner
def _order_by_size(problem: ProblemArrays, least: Floats, config: Ints) -> Ints:
    """Return the jobs, large ones first, and of equals first those that gain most by a full node."""
    jobs = len(config)
    key = np.empty(jobs)
    for j in range(jobs):
        c = config[j]
        if c < 0:
            key[j] = np.inf
            continue
        gain = problem.run_cost[j, c, problem.config_gpus[c]] - least[j, c]
        key[j] = -problem.config_gpus[c] - gain / (1.0 + gain) * 0.5
    return np.argsort(key, kind="mergesort")


@inner
def _find_room(node_type: int, need: int, heights: Ints) -> int:
    """Return the fewest free GPUs, at least *need*, of a node of a type; -1: no node has so many."""
    for free in range(need, heights.shape[1]):
        if heights[node_type, free] > 0:
            return free
    return -1


@kernel(PROBLEM, INT, INT)
def _assign(problem: ProblemArrays, passes: int, halvings: int) -> tuple[Ints, Ints, float, float]:
    """Return configurations, nodes, cost and lower bound."""
    jobs, configs, _ = problem.run_cost.shape
    types, nodes, gpus = len(problem.node_counts), problem.node_counts.max(), problem.gpus
    least = np.empty((jobs, configs))
    _find_least(problem, least)
    config = np.full(jobs, -1, dtype=np.int64)
    price = np.zeros(types)
    bound = _find_prices(problem, least, passes, halvings, config, price)
    # Nodes by type and free GPUs, as stacks.
    stacks = np.empty((types, gpus.max() + 1, nodes), dtype=np.int64)
    heights = np.zeros((types, gpus.max() + 1), dtype=np.int64)
    for t in range(types):
        for n in range(problem.node_counts[t]):
            stacks[t, gpus[t], n] = problem.node_counts[t] - 1 - n  # the first is on top
        heights[t, gpus[t]] = problem.node_counts[t]
    node = np.full(jobs, -1, dtype=np.int64)
    for j in _order_by_size(problem, least, config):
        wanted = config[j]
        if (
            wanted >= 0
            and _find_room(problem.config_node_type[wanted], problem.config_gpus[wanted], heights) < 0
        ):
            wanted = -1
        if wanted < 0:  # the cheapest that fits
            low = problem.wait_cost[j]
            for c in range(configs):
                t, need = problem.config_node_type[c], problem.config_gpus[c]
                if least[j, c] < low and _find_room(t, need, heights) >= 0:
                    low, wanted = least[j, c], c
        config[j] = wanted
        if wanted >= 0:
            t, need = problem.config_node_type[wanted], problem.config_gpus[wanted]
            free = _find_room(t, need, heights)
            heights[t, free] -= 1
            node[j] = stacks[t, free, heights[t, free]]
            stacks[t, free - need, heights[t, free - need]] = node[j]
            heights[t, free - need] += 1
    at = build_occupancy(config, node, problem)
    for j in range(jobs):
        c = at.config[j]
        if c < 0 or at.used[problem.config_node_type[c], at.node[j]] < gpus[problem.config_node_type[c]]:
            move_to_best(j, at, problem)
    return at.config, at.node, sum_cost(at, problem), bound
