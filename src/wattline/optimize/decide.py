"""One decision by one of `wattline.optimize.METHODS`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.optimize.cap_elimination import CaplessInstance, eliminate_caps
from wattline.optimize.exact import GUARD_S, NODE_LIMIT, compute_cost, postpone_all, solve
from wattline.optimize.greedy import greedy, randomised
from wattline.optimize.instance import POSTPONED, Assignment, Instance, limit_gpus
from wattline.optimize.node_assignment import assign_nodes
from wattline.optimize.node_shares import assign_by_shares
from wattline.optimize.objective import Charges, rolling, to_the_end
from wattline.optimize.priced import assign_by_prices
from wattline.optimize.relink import relink
from wattline.optimize.search import improve

_OPTIMAL = 1e-9  # relative gap of a decision that no other can better
_OBJECTIVES = {"rolling": rolling, "to_the_end": to_the_end}


class Effort(NamedTuple):
    """Effort of the methods: randomised tries, their seed, and gap and limits at which the solver stops.

    The solver stops after *node_limit* nodes of its search tree, and with a warning after *time_s*. With more
    than *most* jobs × nodes neither search nor solver are called: `exact` then is the assignment by prices,
    with its gap.
    """

    tries: int = 1000
    seed: int = 0
    gap: float = 1e-3
    node_limit: int = NODE_LIMIT
    most: float = math.inf
    time_s: float = GUARD_S


class DecisionResult(NamedTuple):
    """An assignment, the method that found it, and its gap to the best (nan: unknown).

    The gap covers the choice of configurations. Among equal nodes the choice follows from the jobs that are
    there already, so that few move; the cost of moves is not part of the gap.
    """

    assignment: Assignment
    method: str
    gap: float


def compute_charges(instance: Instance, objective: str) -> Charges:
    """Return the charges of *instance* by one of `wattline.optimize.OBJECTIVES`."""
    return _OBJECTIVES[objective](instance)


def decide(
    instance: Instance,
    charges: Charges,
    method: str,
    config: Ints,
    node: Ints,
    effort: Effort,
    restart_s: float = 0.0,
) -> DecisionResult:
    """Return the best assignment that *method* finds by *charges*.

    Jobs have *config* on *node* now (POSTPONED: nothing), and stay there unless a move, which takes
    *restart_s*, pays.
    """
    if not instance.possible.any():
        return DecisionResult(postpone_all(instance, charges), method, 0.0)
    capless = eliminate_caps(instance, charges)
    assignment, method = _run_method(instance, charges, capless, method, effort)
    now = np.where(config == POSTPONED, POSTPONED, capless.merged[config])
    move_cost = restart_s * (_compute_rate_alone(instance, config) + charges.delay_per_s)
    placed = assign_nodes(capless.instance, capless.charges, assignment, now, node, move_cost)
    return DecisionResult(capless.add_caps(placed), method, assignment.gap)


def _compute_rate_alone(instance: Instance, config: Ints) -> Floats:
    """Return the money per second of each job in *config*, alone on its node."""
    rate = instance.cost_per_s[instance.config_node_type[config], instance.config_gpus[config]]
    if instance.own_cost_per_s.size:
        rate = rate + instance.own_cost_per_s[np.arange(instance.jobs), config]
    return np.asarray(rate)


def _run_method(
    instance: Instance, charges: Charges, capless: CaplessInstance, method: str, effort: Effort
) -> tuple[Assignment, str]:
    """Return the best assignment without caps that *method* finds, and the method that found it."""
    if method == "relink":
        return relink(capless.instance, capless.charges, effort.tries, effort.seed), method
    if method == "exact":
        priced = assign_by_prices(capless.instance, capless.charges)
        if priced.cost - priced.bound <= _OPTIMAL * abs(priced.cost):
            return priced, method
        if instance.jobs * int(instance.node_counts.sum()) > effort.most:
            return priced, method if priced.gap <= effort.gap else "prices"
        # Where every job can have nearly its cheapest slot, a quick method is as good as the solver. The
        # bound of the prices is tighter, and to stop at it was worse over whole runs with dear lateness.
        least = float(_find_least_costs(capless.charges).sum())
        for tried in _try_quick_methods(instance, charges, capless, effort):
            quick = replace(tried, bound=priced.bound)
            if _is_good_enough(capless.charges, quick, least, effort.gap):
                return quick, method
        if instance.jobs <= int(instance.node_counts.sum()):
            shared = assign_by_shares(capless.instance, capless.charges, quick)
            bound = max(priced.bound, shared.bound)
            quick = replace(min(quick, priced, shared, key=_get_cost), bound=bound)
            if _is_good_enough(capless.charges, quick, shared.bound, effort.gap) or quick.gap <= effort.gap:
                return quick, method  # the solver stops at this gap, too
        best = solve(
            capless.instance,
            capless.charges,
            gap=effort.gap,
            node_limit=effort.node_limit,
            time_s=effort.time_s,
        )
        if best is None:
            return quick, method if quick.gap <= effort.gap else "search"
        best = replace(best, bound=float(np.fmax(best.bound, quick.bound)))
        if quick.cost < best.cost:  # the solver reached a limit, or stopped at its gap
            return replace(quick, bound=best.bound), method if best.gap <= effort.gap else "search"
        return best, method
    tries = 1 if method == "greedy" else effort.tries
    tried = _recompute_cost(capless, randomised(instance, charges, tries, effort.seed))
    return (_search(capless, tried, effort) if method == "search" else tried), method


def _find_least_costs(charges: Charges) -> Floats:
    """Return the cost of each job in its cheapest slot; their sum is a lower bound of all assignments."""
    cheapest = charges.run_cost.min(axis=(1, 2), initial=np.inf)
    return np.asarray(np.minimum(cheapest, charges.wait_cost))


def _is_good_enough(charges: Charges, assignment: Assignment, bound: float, gap: float) -> bool:
    """Return whether no job waits that should run, and the cost is within *gap* of the lower *bound*.

    The gap is relative to the cost and to what is at stake, the cost of letting all jobs wait beyond the
    bound: a job that is late by days would hide all that is decided about others.
    """
    least = _find_least_costs(charges)
    waits = assignment.config == POSTPONED
    if (charges.wait_cost[waits] > least[waits]).any():
        return False
    stake = float((charges.wait_cost - least).sum())
    return bool(assignment.cost - bound <= gap * min(abs(assignment.cost), stake))


def _try_quick_methods(
    instance: Instance, charges: Charges, capless: CaplessInstance, effort: Effort
) -> Iterator[Assignment]:
    """Iterate over the assignments of greedy, randomised and search, each only when it is requested."""
    yield _recompute_cost(capless, greedy(instance, charges))
    tried = _recompute_cost(capless, randomised(instance, charges, effort.tries, effort.seed))
    yield tried
    yield _search(capless, tried, effort)


def _search(capless: CaplessInstance, start: Assignment, effort: Effort) -> Assignment:
    """Return the better of two local searches: from *start*, and from one with the fewest GPUs for each job.

    The second is needed because late jobs take their fastest configuration, and no single move takes GPUs
    from such a job and gives them to another.
    """
    least = int(capless.instance.config_gpus[capless.instance.possible.any(axis=0)].min(initial=1 << 30))
    frugal = randomised(limit_gpus(capless.instance, least), capless.charges, effort.tries, effort.seed)
    found = (improve(capless.instance, capless.charges, begin) for begin in (start, frugal))
    return min(found, key=_get_cost)


def _get_cost(assignment: Assignment) -> float:
    return assignment.cost


def _recompute_cost(capless: CaplessInstance, assignment: Assignment) -> Assignment:
    """Return *assignment* without caps, with its cost then."""
    uncapped = capless.remove_caps(assignment)
    return replace(uncapped, cost=compute_cost(capless.instance, capless.charges, uncapped))
