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
from wattline.jit import F2, I1, I2, inner, kernel
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
    cap_w = np.zeros(queued, dtype=np.int64)
    batch = np.zeros(queued, dtype=np.int64)
    for p in range(len(plan_row)):
        if len(plan_cap_w) > 0:
            cap_w[plan_row[p]] = plan_cap_w[p]
        if len(plan_batch) > 0:
            batch[plan_row[p]] = plan_batch[p]
    old_start = index_leases(queue, leases)

    count = 0
    for i in range(queued):
        if kind_of[i] >= 0:
            leader = leader_of[i]
            if stays[leader]:
                count += old_start[leader + 1] - old_start[leader]
            else:
                count += entry_range[1, leader] - entry_range[0, leader]
    block = np.empty((LEASE_ROWS, count), dtype=np.int64)
    at = 0
    for i in range(queued):
        if kind_of[i] < 0:
            continue
        leader = leader_of[i]
        start, end = entry_range[0, leader], entry_range[1, leader]
        if stays[leader]:
            start, end = old_start[leader], old_start[leader + 1]
        for s in range(start, end):
            block[LEASE_JOB, at] = int(queue[QUEUE_JOB, i])
            block[LEASE_GROUP, at] = int(queue[QUEUE_JOB, leader])
            if stays[leader]:
                block[LEASE_NODE, at], block[LEASE_GPUS, at] = leases[LEASE_NODE, s], leases[LEASE_GPUS, s]
            else:
                block[LEASE_NODE, at], block[LEASE_GPUS, at] = entries[ENTRY_NODE, s], entries[ENTRY_GPUS, s]
            block[LEASE_CAP_W, at] = cap_w[leader]
            block[LEASE_BATCH, at] = batch[leader]
            for h in range(3):
                block[LEASE_HOST + h, at] = host[h, leader] if host.shape[1] > 0 else 0
            at += 1
    changed = count != leases.shape[1]
    for r in range(count):
        if changed:
            break
        for c in range(LEASE_ROWS):
            changed = changed or block[c, r] != leases[c, r]
    return block, changed


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
