"""Leases on the nodes that a plan names."""

from __future__ import annotations

import numpy as np

from wattline.core.leases import (
    LEASE_BATCH,
    LEASE_CAP_W,
    LEASE_GPUS,
    LEASE_GROUP,
    LEASE_HOST,
    LEASE_JOB,
    LEASE_NODE,
    LEASE_ROWS,
    Leases,
)
from wattline.core.plan import Placement, Plan
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints
from wattline.errors import PlanError
from wattline.placement.selection import NO_ROOM, check_entries

_NOT_PLANNED = REASONS.index(Reason.HELD)
# Rows of a lease from LEASE_NODE on.
_NODE, _GPUS, _CAP_W, _BATCH, _HOST = (
    row - LEASE_NODE for row in (LEASE_NODE, LEASE_GPUS, LEASE_CAP_W, LEASE_BATCH, LEASE_HOST)
)


def place_on_named_nodes(plan: Plan, snapshot: Snapshot, node: Ints) -> Placement:
    """Return leases on the *node* that the plan names for each job, as far as it is up and has room.

    A running job that cannot move yet is not stopped: it keeps its lease until it can.
    """
    check_entries(plan, snapshot)
    _check_nodes(node, snapshot)
    current = _read_current_leases(snapshot)
    leads = plan.group == plan.row
    wanted = np.zeros((len(current), len(plan)), dtype=np.int64)
    wanted[_NODE], wanted[_GPUS] = node, plan.gpus
    for row, column in ((_CAP_W, plan.cap_w), (_BATCH, plan.batch)):
        wanted[row] = 0 if column is None else column
    if plan.host is not None:
        wanted[_HOST:] = plan.host
    reason = np.full(len(snapshot.queue), _NOT_PLANNED) if plan.reason is None else plan.reason.copy()
    reason[plan.row] = NO_ROOM
    room = np.where(snapshot.up, snapshot.nodes.gpus, 0)
    granted = _resolve_moves(plan.row[leads], wanted[:, leads], current, room)
    granted[:, plan.row[~leads]] = granted[:, plan.group[~leads]]
    reason[granted[_GPUS] > 0] = 0
    return Placement(_build_leases(plan, snapshot, granted), reason, int(np.count_nonzero(reason)))


def _resolve_moves(rows: Ints, wanted: Ints, current: Ints, room: Ints) -> Ints:
    """Return the lease of each of *rows*: *wanted*, or *current* until there is room for it.

    The result is by row of the queue. The GPUs of jobs without either, and of all other rows, are 0.
    """
    granted = np.zeros_like(current)
    used = np.bincount(wanted[_NODE], wanted[_GPUS], len(room))
    if (used <= room).all():
        granted[:, rows] = wanted
        return granted
    granted[:, rows] = current[:, rows]
    room = room - np.bincount(current[_NODE, rows], current[_GPUS, rows], len(room)).astype(np.int64)
    moved = True
    while moved:
        moved = False
        for p in np.flatnonzero((granted[:, rows] != wanted).any(axis=0)).tolist():
            old, new = granted[:, rows[p]], wanted[:, p]
            released = old[_GPUS] if old[_NODE] == new[_NODE] else 0
            if new[_GPUS] <= room[new[_NODE]] + released:
                room[old[_NODE]] += old[_GPUS]
                room[new[_NODE]] -= new[_GPUS]
                granted[:, rows[p]], moved = new, True
    return granted


def _build_leases(plan: Plan, snapshot: Snapshot, granted: Ints) -> Leases:
    """Return the leases *granted* by row of the queue."""
    job, rows = snapshot.queue.job, np.flatnonzero(granted[_GPUS] > 0)
    leader = np.arange(len(job))
    leader[plan.row] = plan.group
    block = np.empty((LEASE_ROWS, len(rows)), dtype=np.int64)
    block[LEASE_JOB], block[LEASE_GROUP] = job[rows], job[leader[rows]]
    block[LEASE_NODE:] = granted[:, rows]
    return snapshot.leases if np.array_equal(block, snapshot.leases.block) else Leases(block)


def _read_current_leases(snapshot: Snapshot) -> Ints:
    """Return by row of the queue the lease, from `LEASE_NODE` on, of a leader that runs on one node.

    The GPUs of all other jobs are 0.
    """
    leases = snapshot.leases
    current = np.zeros((len(leases.block) - LEASE_NODE, len(snapshot.queue)), dtype=np.int64)
    row = np.searchsorted(snapshot.queue.job, leases.job)
    single = (leases.job == leases.group) & (np.bincount(row, minlength=len(snapshot.queue))[row] == 1)
    current[:, row[single]] = leases.block[LEASE_NODE:, single]
    return current


def _check_nodes(node: Ints, snapshot: Snapshot) -> None:
    count = len(snapshot.nodes)
    unknown = (node < 0) | (node >= count)
    if unknown.any():
        raise PlanError(f"the plan names node {node[np.argmax(unknown)]}, expected 0 to {count - 1}")
