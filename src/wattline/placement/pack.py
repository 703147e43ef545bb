"""Which GPUs: best fit, on the fewest nodes, and nobody who stays is moved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.jit import F1, I1, I2, inner, kernel
from wattline.placement.lease_builder import Seats, write
from wattline.placement.named_nodes import told
from wattline.placement.selection import LEADER, POOL, STAYS, Backfill, check_backfill, choose


@dataclass(frozen=True)
class Pack:
    """All GPUs of a job or none, on one GPU kind; the node with the least room that is enough.

    A job that fits on no single node takes the fewest nodes that hold it. A job that keeps running
    keeps its GPUs. Where the plan names nodes, these are taken. *backfill* says who may overtake a job
    that does not fit; see `wattline.placement.selection.choose`.
    """

    backfill: Backfill = "easy"

    def __post_init__(self) -> None:
        check_backfill(self.backfill)

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Leases for the plan, and a reason for everybody without."""
        if plan.node is not None:
            return told(plan, snapshot, plan.node)
        chosen = choose(plan, snapshot, models, self.backfill)
        seats = _seats(
            plan.row,
            plan.gpus,
            chosen.fate,
            chosen.free,
            snapshot.nodes.kind.codes,
            snapshot.wakes_s,
        )
        return write(plan, snapshot, chosen, seats)


@inner
def _seat(
    left: int, kind: int, free: Ints, node_kind: Ints, wakes_s: Floats, node: Ints, gpus: Ints, at: int
) -> int:
    """Take *left* GPUs from *free*, note them from entry *at* on; answers the entry after the last."""
    start = at
    while left > 0:
        # The tightest node that holds all that is left, else the one with most room; among equals
        # the one that is up first.
        tight, wide = -1, -1
        for n in range(len(free)):
            if node_kind[n] == kind and free[n] > 0:
                if free[n] >= left:
                    if (
                        tight < 0
                        or free[n] < free[tight]
                        or (free[n] == free[tight] and wakes_s[n] < wakes_s[tight])
                    ):
                        tight = n
                elif (
                    wide < 0 or free[n] > free[wide] or (free[n] == free[wide] and wakes_s[n] < wakes_s[wide])
                ):
                    wide = n
        n = tight if tight >= 0 else wide
        take = min(left, free[n])
        free[n] -= take
        left -= take
        node[at] = n
        gpus[at] = take
        at += 1
    for a in range(start + 1, at):  # leases list nodes in ascending order
        b = a
        while b > start and node[b - 1] > node[b]:
            node[b - 1], node[b] = node[b], node[b - 1]
            gpus[b - 1], gpus[b] = gpus[b], gpus[b - 1]
            b -= 1
    return at


@kernel(I1, I1, I2, I1, I1, F1)
def _seats(
    plan_row: Ints, plan_gpus: Ints, fate: Ints, free_gpus: Ints, node_kind: Ints, wakes_s: Floats
) -> Seats:
    """Nodes for everybody who was chosen and does not stay, in the order of the plan."""
    free = free_gpus.copy()
    leader, pool, stays = fate[LEADER], fate[POOL], fate[STAYS]
    most = 0  # at most one node per GPU, and each node at most once per job
    for p in range(len(plan_row)):
        i = plan_row[p]
        if leader[i] == i and pool[i] >= 0 and not stays[i]:
            most += min(plan_gpus[p], len(free))
    seat_at = np.zeros((2, len(pool)), dtype=np.int64)
    seats = np.empty((2, most), dtype=np.int64)
    at = 0
    for p in range(len(plan_row)):
        i = plan_row[p]
        if leader[i] == i and pool[i] >= 0 and not stays[i]:
            seat_at[0, i] = at
            at = _seat(plan_gpus[p], pool[i], free, node_kind, wakes_s, seats[0], seats[1], at)
            seat_at[1, i] = at
    return seat_at, seats
