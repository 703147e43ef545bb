"""Leases of selected jobs, from their nodes."""

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
from wattline.core.queue import QUEUE_JOB
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.jit import F2, I1, I2, find, inner, kernel
from wattline.placement.kernel_arrays import ENTRY_GPUS, ENTRY_NODE, NO_INTS, NodeEntries, index_leases
from wattline.placement.selection import (
    OUTCOME_KIND,
    OUTCOME_LEADER,
    OUTCOME_REASON,
    OUTCOME_STAYS,
    Selection,
)

PROPORTIONAL = np.empty((3, 0), dtype=np.int64)


def build_placement(
    plan: Plan,
    snapshot: Snapshot,
    selection: Selection,
    entries: NodeEntries,
    host: Ints = PROPORTIONAL,
    host_limited: bool = False,
) -> Placement:
    """Return the placement of all selected jobs, with the cap and batch of their leaders.

    *entries* are the nodes of leaders that do not stay. *host* is the host resources of each GPU of a
    leader, by row of the queue; empty: all have their proportional share.
    """
    block, changed = _build_block(
        plan.row,
        NO_INTS if plan.cap_w is None else plan.cap_w,
        NO_INTS if plan.batch is None else plan.batch,
        selection.outcome,
        snapshot.queue.block,
        snapshot.leases.block,
        *entries,
        host,
    )
    leases = Leases(block) if changed else snapshot.leases
    return Placement(leases, selection.outcome[OUTCOME_REASON], selection.waiting, host_limited=host_limited)


@inner
def build_block(
    plan_row: Ints,
    plan_cap_w: Ints,
    plan_batch: Ints,
    outcome: Ints,
    queue: Floats,
    leases: Ints,
    entry_range: Ints,
    entries: Ints,
    host: Ints,
) -> tuple[Ints, bool]:
    """Return the block of the new leases, and whether it differs from the old one."""
    queued = queue.shape[1]
    leader_of, kind_of, stays = outcome[OUTCOME_LEADER], outcome[OUTCOME_KIND], outcome[OUTCOME_STAYS]
    old_start = index_leases(queue, leases)

    count = 0
    for i in range(queued):
        if kind_of[i] >= 0:
            leader = leader_of[i]
            if stays[leader]:
                count += old_start[leader + 1] - old_start[leader]
            else:
                count += entry_range[1, leader] - entry_range[0, leader]
    block = np.zeros((LEASE_ROWS, count), dtype=np.int64)
    at = i = 0
    while i < queued:
        first = i
        while i < queued and kind_of[i] >= 0 and leader_of[i] == i and stays[i]:
            i += 1
        if i > first:  # jobs that stay alone or lead a group, most of them: their columns are adjacent
            start, end = old_start[first], old_start[i]
            for c in (LEASE_JOB, LEASE_GROUP, LEASE_NODE, LEASE_GPUS):
                for s in range(start, end):
                    block[c, at + s - start] = leases[c, s]
            at += end - start
        elif kind_of[i] >= 0:
            at = _write_job(block, at, i, queue, outcome, leases, old_start, entry_range, entries)
            i += 1
        else:
            i += 1
    _write_setting(block, LEASE_CAP_W, plan_row, plan_cap_w, queue)
    _write_setting(block, LEASE_BATCH, plan_row, plan_batch, queue)
    for h in range(host.shape[0] if host.shape[1] > 0 else 0):
        for r in range(count):
            block[LEASE_HOST + h, r] = host[h, find(queue[QUEUE_JOB], queued, block[LEASE_GROUP, r])]
    return block, differ(block, leases)


@inner
def differ(block: Ints, leases: Ints) -> bool:
    """Return whether two blocks of leases differ."""
    if block.shape[1] != leases.shape[1]:
        return True
    for c in range(LEASE_ROWS):
        for r in range(block.shape[1]):
            if block[c, r] != leases[c, r]:
                return True
    return False


@inner
def _write_job(
    block: Ints,
    at: int,
    i: int,
    queue: Floats,
    outcome: Ints,
    leases: Ints,
    old_start: Ints,
    entry_range: Ints,
    entries: Ints,
) -> int:
    """Write the leases of row *i* of the queue from column *at* on, and return their end."""
    leader = outcome[OUTCOME_LEADER, i]
    stays = outcome[OUTCOME_STAYS, leader]
    start, end = entry_range[0, leader], entry_range[1, leader]
    if stays:
        start, end = old_start[leader], old_start[leader + 1]
    for s in range(start, end):
        block[LEASE_JOB, at] = int(queue[QUEUE_JOB, i])
        block[LEASE_GROUP, at] = int(queue[QUEUE_JOB, leader])
        block[LEASE_NODE, at] = leases[LEASE_NODE, s] if stays else entries[ENTRY_NODE, s]
        block[LEASE_GPUS, at] = leases[LEASE_GPUS, s] if stays else entries[ENTRY_GPUS, s]
        at += 1
    return at


@inner
def _write_setting(block: Ints, row: int, plan_row: Ints, plan_column: Ints, queue: Floats) -> None:
    """Write *plan_column* of each group's leader into a *row* of the leases; empty: no setting."""
    if len(plan_column) == 0:
        return
    queued = queue.shape[1]
    setting = np.zeros(queued, dtype=np.int64)
    for p in range(len(plan_row)):
        setting[plan_row[p]] = plan_column[p]
    for r in range(block.shape[1]):
        block[row, r] = setting[find(queue[QUEUE_JOB], queued, block[LEASE_GROUP, r])]


@kernel(I1, I1, I1, I2, F2, I2, I2, I2, I2)
def _build_block(
    plan_row: Ints,
    plan_cap_w: Ints,
    plan_batch: Ints,
    outcome: Ints,
    queue: Floats,
    leases: Ints,
    entry_range: Ints,
    entries: Ints,
    host: Ints,
) -> tuple[Ints, bool]:
    return build_block(plan_row, plan_cap_w, plan_batch, outcome, queue, leases, entry_range, entries, host)
