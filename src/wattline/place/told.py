"""Leases on the nodes that a plan names."""

from __future__ import annotations

import numpy as np

from wattline.errors import PlanError
from wattline.place.choose import NO_ROOM, check_entries
from wattline.table import Ints
from wattline.types import LEASE_ROWS, REASONS, Leases, Placement, Plan, Reason, Snapshot

_HELD = REASONS.index(Reason.HELD)


def told(plan: Plan, snapshot: Snapshot, node: Ints) -> Placement:
    """Everybody on the *node* that the plan says, as far as it is up and has the room.

    Who cannot go there yet and runs goes on as it is, if nobody else has been given its GPUs.
    """
    check_entries(plan, snapshot)
    _check(node, snapshot)
    queue = snapshot.queue
    has = _now(snapshot)  # node, GPUs, cap, batch and host of those who run on one node
    room = np.where(snapshot.up, snapshot.nodes.gpus, 0)
    reason = np.full(len(queue), _HELD) if plan.reason is None else plan.reason.copy()
    leads = plan.group == plan.row
    wants = np.zeros((len(has), len(plan)), dtype=np.int64)
    wants[0], wants[1] = node, plan.gpus
    for row, column in ((2, plan.cap_w), (3, plan.batch)):
        wants[row] = 0 if column is None else column
    if plan.host is not None:
        wants[4:] = plan.host
    stays = leads & (has[0, plan.row] == node) & (has[1, plan.row] == plan.gpus)
    order = np.concatenate((np.flatnonzero(stays), np.flatnonzero(leads & ~stays)))
    given = {}
    for p in order.tolist():
        row = int(plan.row[p])
        reason[row] = NO_ROOM
        for want in (wants[:, p], has[:, row]):
            if 0 < want[1] <= room[want[0]]:
                room[want[0]] -= want[1]
                given[row] = want
                reason[row] = 0
                break
    for p in np.flatnonzero(~leads).tolist():
        row, leader = int(plan.row[p]), int(plan.group[p])
        reason[row] = reason[leader]
        if leader in given:
            given[row] = given[leader]
    return Placement(_leases(plan, snapshot, given), reason, int(np.count_nonzero(reason)))


def _leases(plan: Plan, snapshot: Snapshot, given: dict[int, Ints]) -> Leases:
    """Leases of what was *given* by row of the queue."""
    job, rows = snapshot.queue.job, sorted(given)
    leader = np.arange(len(job))
    leader[plan.row] = plan.group
    block = np.empty((LEASE_ROWS, len(rows)), dtype=np.int64)
    block[0], block[1] = job[rows], job[leader[rows]]
    for column, row in enumerate(rows):
        block[2:, column] = given[row]
    return snapshot.leases if np.array_equal(block, snapshot.leases.block) else Leases(block)


def _now(snapshot: Snapshot) -> Ints:
    """By row of the queue the node, GPUs, cap, batch and host of a job that leads and runs on one node;
    elsewhere the GPUs are 0."""
    leases = snapshot.leases
    found = np.zeros((len(leases.block) - 2, len(snapshot.queue)), dtype=np.int64)
    row = np.searchsorted(snapshot.queue.job, leases.job)
    alone = (leases.job == leases.group) & (np.bincount(row, minlength=len(snapshot.queue))[row] == 1)
    found[:, row[alone]] = leases.block[2:, alone]
    return found


def _check(node: Ints, snapshot: Snapshot) -> None:
    wrong = (node < 0) | (node >= len(snapshot.nodes))
    if wrong.any():
        raise PlanError(f"a plan names node {node[np.argmax(wrong)]} of {len(snapshot.nodes)}")
