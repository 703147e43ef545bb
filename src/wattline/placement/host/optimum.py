"""The best that cores, memory and storage can do: Synergy-OPT with HiGHS, as an oracle and as a placer.

First the cluster is one large node: how many jobs of each sort get which point (`allocate`). The program
counts jobs that are alike, so its size does not grow with their number. Then whole jobs are put on nodes,
as many as possible (`pack_whole`); the rest, and what rounding leaves over, is shared out as `Tune` does.
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
from wattline.models.sensitivity import Needs
from wattline.placement.host.synergy_tune import needs_of, tuned
from wattline.placement.selection import LEADER, POOL, STAYS, Backfill, check_backfill, choose

_NODES = 200  # of the search tree for places; a limit of time would make runs differ
_GAP = 1e-4  # relative distance to the best at which the search for whole numbers ends


class Allocation(NamedTuple):
    """How many jobs of each set have which point on one large node; points are entries of `Needs.host`."""

    point: Ints
    jobs: Ints
    worth: float  # sum of the speeds of all jobs
    bound: float  # which no allocation exceeds, with fractions of jobs too


def allocate(known: Needs, sets: Ints, gpus: Ints, host: Ints, *, whole: bool = True) -> Allocation:
    """Give jobs, one entry of *sets* and *gpus* each, points that make the sum of their speeds largest.

    *host* is what there is in all, rows as in `HOST`; 0: as much as anybody wants. Everybody gets a point
    at which it is as fast as with its proportional share. *whole*: no job has parts of several points.
    """
    from scipy.optimize import LinearConstraint, linprog, milp  # takes a while to import
    from scipy.sparse import csr_array

    if not len(sets):
        return Allocation(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 0.0, 0.0)
    kinds, count = np.unique(np.column_stack((sets, gpus)), axis=0, return_counts=True)
    first, last = known.first[kinds[:, 0]], known.first[kinds[:, 0] + 1]
    point = np.concatenate([np.arange(a, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)])
    kind = np.repeat(np.arange(len(kinds)), last - first)
    limited = np.flatnonzero(host > 0)
    scale = np.maximum(host[limited], 1)[:, None]
    uses = known.host[np.ix_(limited, point)] * kinds[kind, 1] / scale
    each = csr_array((np.ones(len(point)), (kind, np.arange(len(point)))), shape=(len(kinds), len(point)))
    gain = known.speed[point]
    relaxed = linprog(-gain, A_ub=uses, b_ub=np.ones(len(limited)), A_eq=each, b_eq=count, method="highs")
    if relaxed.status != 0:
        raise ConfigError(f"{len(sets)} jobs have no allocation: {relaxed.message}")
    bound, found = -float(relaxed.fun), relaxed.x
    if whole:
        exact = milp(
            -gain,
            integrality=np.ones(len(point)),
            constraints=(
                LinearConstraint(uses, ub=np.ones(len(limited))),
                LinearConstraint(each, count, count),
            ),
            options={"mip_rel_gap": _GAP},
        )
        if exact.x is None:
            raise ConfigError(f"{len(sets)} jobs have no allocation in whole jobs: {exact.message}")
        found = np.round(exact.x)
    used = np.flatnonzero(found > 1e-9)
    worth = float(gain @ found)
    return Allocation(point[used], np.ceil(found[used] - 1e-9).astype(np.int64), worth, bound)


def pack_whole(gpus: Ints, host: Ints, count: Ints, free: Ints, node_host: Ints) -> Ints:
    """How many jobs of each class go on each node so that as few as possible have to be split or slowed.

    A class is *count* jobs with *gpus* and *host* for each GPU; nodes have *free* GPUs and *node_host*.
    Rows of the answer are classes, columns are nodes.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes a while to import
    from scipy.sparse import csr_array

    classes, nodes = len(gpus), len(free)
    limited = node_host.sum(axis=1) > 0
    takes = np.concatenate((gpus[None, :], (host * gpus)[limited])).astype(np.float64)
    has = np.concatenate((free[None, :], node_host[limited])).astype(np.float64)
    scale = np.maximum(has.max(axis=1, keepdims=True), 1.0)
    takes, has = takes / scale, has / scale
    at = np.arange(classes * nodes).reshape(classes, nodes)
    rows, columns, values = [], [], []
    for r in range(len(takes)):
        for n in range(nodes):
            rows += [r * nodes + n] * classes
            columns += at[:, n].tolist()
            values += takes[r].tolist()
    fits = csr_array((values, (rows, columns)), shape=(len(takes) * nodes, classes * nodes))
    whole = csr_array(
        (np.ones(classes * nodes), (np.repeat(np.arange(classes), nodes), np.arange(classes * nodes))),
        shape=(classes, classes * nodes),
    )
    found = milp(
        -np.ones(classes * nodes),
        integrality=np.ones(classes * nodes),
        bounds=Bounds(0, np.repeat(count, nodes)),
        constraints=(LinearConstraint(fits, ub=has.reshape(-1)), LinearConstraint(whole, ub=count)),
        options={"mip_rel_gap": 0.01, "node_limit": _NODES},
    )
    if found.x is None:
        return np.zeros((classes, nodes), dtype=np.int64)
    return np.asarray(np.round(found.x).astype(np.int64).reshape(classes, nodes))


@dataclass(frozen=True)
class Optimum:
    """What `allocate` says is best, on nodes as `pack_whole` says; for small clusters, and to compare with.

    Everybody who fits on a node may be moved at every look, though jobs stay where others like them would
    go. What rounding leaves over is shared out as `Tune` does, so nobody is slower than with its share.
    """

    backfill: Backfill = "easy"

    def __post_init__(self) -> None:
        check_backfill(self.backfill)

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Leases for the plan, and a reason for everybody without."""
        chosen = choose(plan, snapshot, models, self.backfill)
        goes_to = np.full(len(snapshot.queue), -1, dtype=np.int64)
        fate, free = chosen.fate.copy(), chosen.free.copy()
        known, sets, _ = needs_of(plan, snapshot, models)
        held = _held(snapshot)
        alone = np.bincount(fate[LEADER][fate[LEADER] >= 0], minlength=fate.shape[1]) == 1
        gpus = np.zeros(len(snapshot.queue), dtype=np.int64)
        gpus[plan.row] = plan.gpus
        for shape in np.unique(known.shape).tolist():
            here = np.flatnonzero(known.shape == shape)
            kind = snapshot.nodes.kind.codes[here[0]]
            small = alone & (gpus <= snapshot.nodes.gpus[here[0]]) & (fate[LEADER] == np.arange(len(gpus)))
            rows = np.flatnonzero((fate[POOL] == kind) & small & (goes_to < 0))
            stays = (fate[STAYS, rows] == 1) & np.isin(held[rows], here)
            moving = rows[stays]
            np.add.at(free, held[moving], gpus[moving])
            rows = np.concatenate((moving, rows[~stays & (fate[STAYS, rows] == 0)]))
            rows = rows[np.cumsum(gpus[rows]) <= free[here].sum()]
            if not len(rows):
                continue
            fate[STAYS, moving] = 0
            goes_to[rows] = _go(known, sets[rows, shape], gpus[rows], held[rows], here, free, snapshot.nodes)
        seeking = int(np.count_nonzero((fate[POOL] >= 0) & (fate[STAYS] == 0)))
        chosen = chosen._replace(fate=fate, free=free, seeking=seeking)
        return tuned(plan, snapshot, models, chosen, goes_to, 0.98, np.inf)


def _held(snapshot: Snapshot) -> Ints:
    """By row of the queue the node that a job is on; -1: it waits, or is on several."""
    leases, queue = snapshot.leases, snapshot.queue
    first, last = (np.searchsorted(leases.job, queue.job, side=side) for side in ("left", "right"))
    node = np.full(len(queue), -1, dtype=np.int64)
    one = last == first + 1
    node[one] = leases.node[first[one]]
    return node


def _go(known: Needs, sets: Ints, gpus: Ints, held: Ints, here: Ints, free: Ints, nodes: Nodes) -> Ints:
    """For jobs on nodes of one shape, *here*, where each goes; -1: it is one of the few that do not fit."""
    host = nodes.host[:, here]
    best = allocate(known, sets, gpus, host.sum(axis=1))
    set_of = np.searchsorted(known.first, best.point, side="right") - 1
    wide = np.zeros(len(known.first), dtype=np.int64)
    wide[sets] = gpus
    on = pack_whole(wide[set_of], known.host[:, best.point], best.jobs, free[here], host)
    goes_to = np.full(len(sets), -1, dtype=np.int64)
    places: dict[int, list[int]] = {}
    for row, s in enumerate(set_of.tolist()):
        places.setdefault(s, []).extend(np.repeat(here, on[row]).tolist())
    for s, seats in places.items():
        rows = np.flatnonzero(sets == s)
        for row in rows[np.isin(held[rows], seats)].tolist():  # who is there already
            if held[row] in seats:
                goes_to[row] = held[row]
                seats.remove(int(held[row]))
        for row in rows[goes_to[rows] < 0].tolist():
            if seats:
                goes_to[row] = seats.pop()
    return goes_to
