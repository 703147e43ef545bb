"""Leases on the nodes that a plan names."""

from __future__ import annotations

import numpy as np

from wattline.core.leases import LEASE_ROWS, Leases
from wattline.core.plan import Placement, Plan
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints
from wattline.errors import PlanError
from wattline.placement.selection import NO_ROOM, check_entries

_HELD = REASONS.index(Reason.HELD)


def told(plan: Plan, snapshot: Snapshot, node: Ints) -> Placement:
    """Everybody on the *node* that the plan says, as far as it is up and has the room.

    Where that is not so for all, nobody who runs is stopped for it: it goes on as it is until it can move.
    """
    check_entries(plan, snapshot)
    _check(node, snapshot)
    has = _now(snapshot)
    leads = plan.group == plan.row
    wants = np.zeros((len(has), len(plan)), dtype=np.int64)
    wants[0], wants[1] = node, plan.gpus
    for row, column in ((2, plan.cap_w), (3, plan.batch)):
        wants[row] = 0 if column is None else column
    if plan.host is not None:
        wants[4:] = plan.host
    reason = np.full(len(snapshot.queue), _HELD) if plan.reason is None else plan.reason.copy()
    reason[plan.row] = NO_ROOM
    given = _seated(plan.row[leads], wants[:, leads], has, np.where(snapshot.up, snapshot.nodes.gpus, 0))
    for p in np.flatnonzero(~leads).tolist():
        if int(plan.group[p]) in given:
            given[int(plan.row[p])] = given[int(plan.group[p])]
    reason[list(given)] = 0
    return Placement(_leases(plan, snapshot, given), reason, int(np.count_nonzero(reason)))


def _seated(rows: Ints, wants: Ints, has: Ints, room: Ints) -> dict[int, Ints]:
    """What each of *rows* of the queue is given: what it *wants*, or what it *has* until that is there."""
    used = np.bincount(wants[0], wants[1], len(room))
    if (used <= room).all():
        return {row: wants[:, p] for p, row in enumerate(rows.tolist())}
    given = {row: has[:, row] for row in rows.tolist() if has[1, row] > 0}
    room = room - np.bincount(has[0, rows], has[1, rows], len(room)).astype(np.int64)
    moved = True
    while moved:
        moved = False
        for p, row in enumerate(rows.tolist()):
            now, then = given.get(row), wants[:, p]
            if now is not None and np.array_equal(now, then):
                continue
            back = now[1] if now is not None and now[0] == then[0] else 0
            if then[1] <= room[then[0]] + back:
                if now is not None:
                    room[now[0]] += now[1]
                room[then[0]] -= then[1]
                given[row], moved = then, True
    return given


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
