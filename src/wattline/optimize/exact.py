"""Exact solution by a mixed-integer programme of a size that does not grow with jobs or nodes.

Nodes of one type are interchangeable, so it is enough to count how many of them have which pattern, a
multiset of GPU counts. With the patterns fixed, giving jobs their slots is a transportation problem, which
needs no integer variables.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.optimize.instance import POSTPONED, Assignment, Instance
from wattline.optimize.objective import Charges
from wattline.optimize.quiet_solver import solve_quietly

_GAP = 1e-3
_TIME_LIMIT_REACHED = 1  # status of `scipy.optimize.milp`
NODE_LIMIT = 200
"""Nodes of the search tree after which the solver stops; a limit of time would make machines differ."""
GUARD_S = 60.0
"""Seconds after which the solver stops with a warning: far more than it needs for usual sizes."""
_PATTERNS = 2000  # more would take longer to write down than to solve


class Pattern(NamedTuple):
    """GPU counts of the jobs of one node, ascending."""

    node_type: int
    gpus: tuple[int, ...]


def list_patterns(instance: Instance, most: int) -> list[Pattern] | None:
    """Return every non-empty way to fill a node, by node type; None: they are more than *most*."""
    found: list[Pattern] = []
    for node_type, room in enumerate(instance.gpus.tolist()):
        sizes = sorted(set(instance.config_gpus[instance.config_node_type == node_type].tolist()))
        line: list[tuple[tuple[int, ...], int]] = [((), 0)]
        while line:
            used, total = line.pop()
            for size in sizes:
                if (not used or size >= used[-1]) and total + size <= room:
                    if len(found) == most:
                        return None
                    found.append(Pattern(node_type, (*used, size)))
                    line.append(((*used, size), total + size))
    return found


def solve(
    instance: Instance,
    charges: Charges,
    *,
    gap: float = _GAP,
    node_limit: int = NODE_LIMIT,
    time_s: float = GUARD_S,
) -> Assignment | None:
    """Return the cheapest assignment by *charges*, within *gap*; None: none was found within the limits.

    The solver stops after *node_limit* nodes of its search tree. After *time_s* it stops, too, with a
    warning: the decision then depends on the speed of the machine.
    """
    from scipy.optimize import Bounds  # takes a while to import

    if not instance.jobs or not instance.possible.any():
        return postpone_all(instance, charges)
    patterns = list_patterns(instance, _PATTERNS)
    if patterns is None:
        return None
    job, config, used = np.nonzero(np.isfinite(charges.run_cost))
    continuous = len(job) + instance.jobs  # a variable for each slot of a job, and one for its waiting
    cost = np.concatenate((charges.run_cost[job, config, used], charges.wait_cost, np.zeros(len(patterns))))
    node_type = np.array([pattern.node_type for pattern in patterns])
    most = np.concatenate((np.ones(continuous), instance.node_counts[node_type].astype(np.float64)))
    result = solve_quietly(
        cost,
        integrality=np.concatenate((np.zeros(continuous), np.ones(len(patterns)))),
        bounds=Bounds(0, most),
        constraints=_build_constraints(instance, patterns, job, config, used),
        options={"mip_rel_gap": gap, "node_limit": node_limit, "time_limit": time_s},
    )
    if result.status == _TIME_LIMIT_REACHED:
        warnings.warn(
            f"the solver was stopped after {time_s:g} s: a faster machine may decide otherwise about these"
            f" {instance.jobs} jobs on {int(instance.node_counts.sum())} nodes; method search has no limit",
            RuntimeWarning,
            stacklevel=2,
        )
    if result.x is None:
        return None
    counts = np.round(result.x[continuous:]).astype(np.int64)
    bound = float(result.mip_dual_bound) if result.mip_dual_bound is not None else np.nan
    return assign_slots(instance, charges, patterns, counts, bound)


def _build_constraints(
    instance: Instance, patterns: list[Pattern], job: Ints, config: Ints, used: Ints
) -> tuple[Any, Any, Any]:
    """Return the constraints of the programme.

    Its variables are slots (*job*, *config*, *used* busy GPUs of the node), waiting by job, and the number of
    nodes of each pattern.
    """
    from scipy.optimize import LinearConstraint
    from scipy.sparse import csr_array

    slots, slot = np.unique(np.stack((config, used)), axis=1, return_inverse=True)
    slot = slot.reshape(-1)
    count, jobs = len(job), instance.jobs
    columns = count + jobs + len(patterns)
    # Each job has one slot, or waits.
    once = csr_array(
        (
            np.ones(count + jobs),
            (np.concatenate((job, np.arange(jobs))), np.arange(count + jobs)),
        ),
        shape=(jobs, columns),
    )
    # As many jobs have a slot as patterns offer.
    rows, cols, values = [slot], [np.arange(count)], [np.ones(count)]
    for p, pattern in enumerate(patterns):
        total = sum(pattern.gpus)
        for s, (c, u) in enumerate(slots.T.tolist()):
            if u == total and instance.config_node_type[c] == pattern.node_type:
                many = pattern.gpus.count(int(instance.config_gpus[c]))
                if many:
                    rows.append(np.array([s]))
                    cols.append(np.array([count + jobs + p]))
                    values.append(np.array([-float(many)]))
    offers = csr_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(cols))),
        shape=(slots.shape[1], columns),
    )
    # There are so many nodes of each type.
    node_type = np.array([pattern.node_type for pattern in patterns])
    room = csr_array(
        (np.ones(len(patterns)), (node_type, count + jobs + np.arange(len(patterns)))),
        shape=(len(instance.node_counts), columns),
    )
    return (
        LinearConstraint(once, 1, 1),
        LinearConstraint(offers, 0, 0),
        LinearConstraint(room, ub=instance.node_counts),
    )


def assign_slots(
    instance: Instance, charges: Charges, patterns: list[Pattern], counts: Ints, bound: float = np.nan
) -> Assignment:
    """Return the cheapest assignment of jobs to the slots of so many nodes of each pattern."""
    from scipy.optimize import linear_sum_assignment

    config_at = {
        (int(node_type), int(gpus)): c
        for c, (node_type, gpus) in enumerate(
            zip(instance.config_node_type, instance.config_gpus, strict=True)
        )
    }
    slots: list[tuple[int, int, int]] = []  # configuration, busy GPUs, node
    next_node = [0] * len(instance.node_counts)
    for pattern, count in zip(patterns, counts.tolist(), strict=True):
        for _ in range(count):
            n = next_node[pattern.node_type]
            next_node[pattern.node_type] += 1
            slots += [(config_at[pattern.node_type, g], sum(pattern.gpus), n) for g in pattern.gpus]
    waits = np.full((instance.jobs, instance.jobs), np.inf)
    np.fill_diagonal(waits, charges.wait_cost)
    by_slot = (
        np.stack([charges.run_cost[:, c, u] for c, u, _ in slots], axis=1)
        if slots
        else np.empty((instance.jobs, 0))
    )
    matrix = np.concatenate((by_slot, waits), axis=1)
    large = 1e3 * (1.0 + np.abs(matrix[np.isfinite(matrix)]).sum())
    rows, columns = linear_sum_assignment(np.where(np.isfinite(matrix), matrix, large))
    config = np.full(instance.jobs, POSTPONED, dtype=np.int64)
    node = np.full(instance.jobs, -1, dtype=np.int64)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if column < len(slots):
            config[row], _, node[row] = slots[column]
    return Assignment(config, node, compute_cost(instance, charges, Assignment(config, node)), bound)


def compute_cost(instance: Instance, charges: Charges, assignment: Assignment) -> float:
    """Return the cost of an assignment by *charges*, with the busy GPUs of its nodes."""
    used = np.zeros((len(instance.node_counts), int(instance.node_counts.max(initial=0)) + 1), dtype=np.int64)
    runs = np.flatnonzero(assignment.config != POSTPONED)
    config = assignment.config[runs]
    np.add.at(used, (instance.config_node_type[config], assignment.node[runs]), instance.config_gpus[config])
    cost: Floats = charges.run_cost[
        runs, config, used[instance.config_node_type[config], assignment.node[runs]]
    ]
    waits = assignment.config == POSTPONED
    return float(cost.sum() + charges.wait_cost[waits].sum())


def postpone_all(instance: Instance, charges: Charges) -> Assignment:
    """Return the assignment in which all jobs wait, for an instance in which none can run."""
    none = np.full(instance.jobs, POSTPONED, dtype=np.int64)
    cost = float(charges.wait_cost.sum())
    return Assignment(none, none.copy(), cost, cost)
