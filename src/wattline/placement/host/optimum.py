"""Optimal allocation of cores, memory and storage: Synergy-OPT with HiGHS, as an oracle and as a placer.

First the cluster is one large node: `allocate` decides how many jobs of each class get which point. The
program counts equal jobs, so its size does not grow with their number. Then whole jobs are packed on nodes,
as many as possible (`pack_whole_jobs`); the rest, and what rounding leaves over, is split as `Tune` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wattline.core.nodes import Nodes
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints
from wattline.errors import ConfigError
from wattline.models.sensitivity import Sensitivity
from wattline.optimize.quiet_solver import solve_quietly
from wattline.placement.host.synergy_tune import look_up_sensitivity, place_selection
from wattline.placement.selection import (
    OUTCOME_KIND,
    OUTCOME_LEADER,
    OUTCOME_STAYS,
    Backfill,
    check_backfill,
    select_jobs,
)

_NODE_LIMIT = 200  # of the search tree of `pack_whole_jobs`; a limit of time would make runs differ
_RELATIVE_GAP = 1e-4  # distance to the optimum at which the search of `allocate` for whole numbers ends
_KEEP = 0.98  # as `Tune.keep`


class Allocation(NamedTuple):
    """Numbers of jobs by point on one large node; points are columns of `Sensitivity.host`."""

    point: Ints
    jobs: Ints
    speed_sum: float  # sum of the speeds of all jobs
    bound: float  # upper bound of that sum, from the relaxation to fractions of jobs


def allocate(known: Sensitivity, sets: Ints, gpus: Ints, host: Ints, *, whole: bool = True) -> Allocation:
    """Return the points of jobs, one entry of *sets* and *gpus* each, that maximise the sum of their speeds.

    *host* is the resources of the whole cluster, rows as in `HOST_RESOURCES`; 0: unlimited. Every job gets a
    point at which it is as fast as with its proportional share. *whole*: no job has parts of several points.
    """
    from scipy.optimize import LinearConstraint, linprog  # takes a while to import
    from scipy.sparse import csr_array

    if not len(sets):
        return Allocation(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 0.0, 0.0)
    classes, count = np.unique(np.column_stack((sets, gpus)), axis=0, return_counts=True)
    start, end = known.set_start[classes[:, 0]], known.set_start[classes[:, 0] + 1]
    point = np.concatenate([np.arange(a, b) for a, b in zip(start.tolist(), end.tolist(), strict=True)])
    class_of = np.repeat(np.arange(len(classes)), end - start)
    limited = np.flatnonzero(host > 0)
    scale = np.maximum(host[limited], 1)[:, None]
    usage = known.host[np.ix_(limited, point)] * classes[class_of, 1] / scale
    members = csr_array(
        (np.ones(len(point)), (class_of, np.arange(len(point)))), shape=(len(classes), len(point))
    )
    speed = known.speed[point]
    relaxed = linprog(
        -speed, A_ub=usage, b_ub=np.ones(len(limited)), A_eq=members, b_eq=count, method="highs"
    )
    if relaxed.status != 0:
        raise ConfigError(
            f"no allocation of host resources to {len(sets)} jobs: HiGHS says {relaxed.message}"
        )
    bound, amount = -float(relaxed.fun), relaxed.x
    if whole:
        exact = solve_quietly(
            -speed,
            integrality=np.ones(len(point)),
            constraints=(
                LinearConstraint(usage, ub=np.ones(len(limited))),
                LinearConstraint(members, count, count),
            ),
            options={"mip_rel_gap": _RELATIVE_GAP},
        )
        if exact.x is None:
            raise ConfigError(
                f"no allocation of host resources to {len(sets)} whole jobs: HiGHS says {exact.message}"
            )
        amount = np.round(exact.x)
    used = np.flatnonzero(amount > 1e-9)
    jobs = np.ceil(amount[used] - 1e-9).astype(np.int64)
    return Allocation(point[used], jobs, float(speed @ amount), bound)


def pack_whole_jobs(gpus: Ints, host: Ints, count: Ints, free_gpus: Ints, node_host: Ints) -> Ints:
    """Return how many jobs of each class go on each node so that as many as possible fit as a whole.

    A class is *count* jobs with *gpus* and *host* for each GPU; nodes have *free_gpus* and *node_host*.
    Rows of the result are classes, columns are nodes.
    """
    from scipy.optimize import Bounds, LinearConstraint  # takes a while to import
    from scipy.sparse import csr_array

    classes, nodes = len(gpus), len(free_gpus)
    limited = node_host.sum(axis=1) > 0
    usage = np.concatenate((gpus[None, :], (host * gpus)[limited])).astype(np.float64)
    capacity = np.concatenate((free_gpus[None, :], node_host[limited])).astype(np.float64)
    scale = np.maximum(capacity.max(axis=1, keepdims=True), 1.0)
    usage, capacity = usage / scale, capacity / scale
    variable = np.arange(classes * nodes).reshape(classes, nodes)
    rows, columns, values = [], [], []
    for r in range(len(usage)):
        for n in range(nodes):
            rows += [r * nodes + n] * classes
            columns += variable[:, n].tolist()
            values += usage[r].tolist()
    node_usage = csr_array((values, (rows, columns)), shape=(len(usage) * nodes, classes * nodes))
    placed = csr_array(
        (np.ones(classes * nodes), (np.repeat(np.arange(classes), nodes), np.arange(classes * nodes))),
        shape=(classes, classes * nodes),
    )
    solution = solve_quietly(
        -np.ones(classes * nodes),
        integrality=np.ones(classes * nodes),
        bounds=Bounds(0, np.repeat(count, nodes)),
        constraints=(
            LinearConstraint(node_usage, ub=capacity.reshape(-1)),
            LinearConstraint(placed, ub=count),
        ),
        options={"mip_rel_gap": 0.01, "node_limit": _NODE_LIMIT},
    )
    if solution.x is None:
        return np.zeros((classes, nodes), dtype=np.int64)
    return np.asarray(np.round(solution.x).astype(np.int64).reshape(classes, nodes))


@dataclass(frozen=True)
class Optimum:
    """The points of `allocate` on the nodes of `pack_whole_jobs`; for small clusters and comparisons.

    Every job that fits on a node may be moved at every decision, but a job stays where an equal one would go.
    What rounding leaves over is split as `Tune` does, so no job is slower than with its share.
    """

    backfill: Backfill = "easy"

    def __post_init__(self) -> None:
        check_backfill(self.backfill)

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Return leases for the plan, and a reason for every job without."""
        selection = select_jobs(plan, snapshot, models, self.backfill)
        preferred_node = np.full(len(snapshot.queue), -1, dtype=np.int64)
        outcome, free_gpus = selection.outcome.copy(), selection.free_gpus.copy()
        known, (sets, _) = look_up_sensitivity(plan, snapshot, models)
        current_node = _find_current_nodes(snapshot)
        leader_of, kind_of, stays = outcome[OUTCOME_LEADER], outcome[OUTCOME_KIND], outcome[OUTCOME_STAYS]
        alone = np.bincount(leader_of[leader_of >= 0], minlength=outcome.shape[1]) == 1
        gpus = np.zeros(len(snapshot.queue), dtype=np.int64)
        gpus[plan.row] = plan.gpus
        for shape in np.unique(known.node_shape).tolist():
            here = np.flatnonzero(known.node_shape == shape)
            kind = snapshot.nodes.kind.codes[here[0]]
            fits = alone & (gpus <= snapshot.nodes.gpus[here[0]]) & (leader_of == np.arange(len(gpus)))
            rows = np.flatnonzero((kind_of == kind) & fits & (preferred_node < 0))
            stays_here = (stays[rows] == 1) & np.isin(current_node[rows], here)
            movable = rows[stays_here]
            np.add.at(free_gpus, current_node[movable], gpus[movable])
            rows = np.concatenate((movable, rows[~stays_here & (stays[rows] == 0)]))
            rows = rows[np.cumsum(gpus[rows]) <= free_gpus[here].sum()]
            if not len(rows):
                continue
            stays[movable] = 0
            preferred_node[rows] = _assign_nodes(
                known, sets[rows, shape], gpus[rows], current_node[rows], here, free_gpus, snapshot.nodes
            )
        unplaced = int(np.count_nonzero((kind_of >= 0) & (stays == 0)))
        selection = selection._replace(outcome=outcome, free_gpus=free_gpus, unplaced=unplaced)
        return place_selection(plan, snapshot, models, selection, preferred_node, _KEEP, np.inf)


def _find_current_nodes(snapshot: Snapshot) -> Ints:
    """Return by row of the queue the node that a job runs on; -1: it waits, or runs on several."""
    leases, queue = snapshot.leases, snapshot.queue
    start, end = (np.searchsorted(leases.job, queue.job, side=side) for side in ("left", "right"))
    node = np.full(len(queue), -1, dtype=np.int64)
    single = end == start + 1
    node[single] = leases.node[start[single]]
    return node


def _assign_nodes(
    known: Sensitivity, sets: Ints, gpus: Ints, current_node: Ints, here: Ints, free_gpus: Ints, nodes: Nodes
) -> Ints:
    """Return a node for each job among the nodes *here* of one shape; -1: the job did not fit."""
    host = nodes.host[:, here]
    best = allocate(known, sets, gpus, host.sum(axis=1))
    set_of_class = np.searchsorted(known.set_start, best.point, side="right") - 1
    gpus_of_set = np.zeros(len(known.set_start), dtype=np.int64)
    gpus_of_set[sets] = gpus
    count = pack_whole_jobs(
        gpus_of_set[set_of_class], known.host[:, best.point], best.jobs, free_gpus[here], host
    )
    assigned = np.full(len(sets), -1, dtype=np.int64)
    nodes_of_set: dict[int, list[int]] = {}
    for row, s in enumerate(set_of_class.tolist()):
        nodes_of_set.setdefault(s, []).extend(np.repeat(here, count[row]).tolist())
    for s, available in nodes_of_set.items():
        rows = np.flatnonzero(sets == s)
        for row in rows[np.isin(current_node[rows], available)].tolist():  # jobs that are there already
            if current_node[row] in available:
                assigned[row] = current_node[row]
                available.remove(int(current_node[row]))
        for row in rows[assigned[rows] < 0].tolist():
            if available:
                assigned[row] = available.pop()
    return assigned
