"""Best-fit placement on the fewest nodes; jobs that stay are not moved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.leases import LEASE_GPUS, LEASE_GROUP, LEASE_JOB, LEASE_NODE, LEASE_ROWS, Leases
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS, QUEUE_HELD_GPUS, QUEUE_JOB
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.jit import F1, F2, I1, I2, INT, inner, kernel
from wattline.models.remaining import group_remaining_s
from wattline.placement.kernel_arrays import (
    ENTRY_GPUS,
    ENTRY_NODE,
    NO_INTS,
    NODE_COLUMNS,
    PLAN_COLUMNS,
    NodeColumns,
    NodeEntries,
    PlanColumns,
    count_gpus,
    sort_by_node,
    take_node_columns,
    take_plan_columns,
)
from wattline.placement.lease_builder import build_block, differ
from wattline.placement.named_nodes import place_on_named_nodes
from wattline.placement.selection import (
    BACKFILL_MODES,
    NO_TIMES,
    OUTCOME_KIND,
    OUTCOME_LEADER,
    OUTCOME_REASON,
    OUTCOME_STAYS,
    Backfill,
    check_backfill,
    exclude_other_kinds,
    raise_plan_error,
    select_rows,
)


@dataclass(frozen=True)
class Pack:
    """All GPUs of a job or none, on one GPU kind; the node with the least room that is enough.

    A job that fits on no single node takes the fewest nodes that hold it. A job that keeps running
    keeps its GPUs. Where the plan names nodes, these are taken. *backfill* says which jobs may overtake one
    that does not fit; see `wattline.placement.selection.select_jobs`.
    """

    backfill: Backfill = "easy"

    def __post_init__(self) -> None:
        check_backfill(self.backfill)

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Return leases for the plan, and a reason for every job without."""
        if plan.node is not None:
            return place_on_named_nodes(plan, snapshot, plan.node)
        excluded_kinds = exclude_other_kinds(plan, snapshot)
        nodes, queue, remaining_s = take_node_columns(snapshot), snapshot.queue, NO_TIMES
        while True:
            reason, block, changed, waiting, needs_remaining, invalid = _pack(
                take_plan_columns(plan),
                nodes,
                len(snapshot.nodes.kind.names),
                snapshot.free_gpus,
                queue.block,
                snapshot.leases.block,
                BACKFILL_MODES.index(self.backfill),
                remaining_s,
                excluded_kinds,
                NO_INTS if plan.cap_w is None else plan.cap_w,
                NO_INTS if plan.batch is None else plan.batch,
            )
            if invalid >= 0:
                raise_plan_error(plan, invalid, snapshot)
            if not needs_remaining:
                leases = Leases(block) if changed else snapshot.leases
                return Placement(leases, reason, waiting)
            remaining_s = group_remaining_s(snapshot, models, plan)


@inner
def _find_tightest(need: int, kind: int, free: Ints, node_kind: Ints, boot_done_s: Floats) -> int:
    """Return the node with the least room for *need* GPUs (-1: none), among equals the one up first."""
    tight = -1
    for n in range(len(free)):
        if (
            node_kind[n] == kind
            and free[n] >= need
            and (
                tight < 0
                or free[n] < free[tight]
                or (free[n] == free[tight] and boot_done_s[n] < boot_done_s[tight])
            )
        ):
            tight = n
    return tight


@inner
def _order_by_room(kind: int, free: Ints, node_kind: Ints, boot_done_s: Floats) -> Ints:
    """Return the nodes with room, most room first, among equals the one that is up first."""
    most = 0
    for n in range(len(free)):
        if node_kind[n] == kind:
            most = max(most, free[n])
    start = np.zeros(most + 2, dtype=np.int64)  # by room: the number of nodes that have more
    for n in range(len(free)):
        if node_kind[n] == kind and free[n] > 0:
            start[free[n] - 1] += 1
    for room in range(most - 1, -1, -1):
        start[room] += start[room + 1]
    order = np.empty(start[0], dtype=np.int64)
    end = start.copy()
    for n in range(len(free)):
        if node_kind[n] == kind and free[n] > 0:
            at = end[free[n]]
            end[free[n]] += 1
            while at > start[free[n]] and boot_done_s[n] < boot_done_s[order[at - 1]]:
                order[at] = order[at - 1]
                at -= 1
            order[at] = n
    return order


@inner
def _take_gpus(
    left: int, kind: int, free: Ints, node_kind: Ints, boot_done_s: Floats, entries: Ints, at: int
) -> int:
    """Take *left* GPUs from *free* and write *entries* from *at* on; return the end of the entries.

    The tightest node that holds all that is left is taken, else the one with most room.
    """
    start = at
    tight = _find_tightest(left, kind, free, node_kind, boot_done_s)
    if tight < 0:
        order = _order_by_room(kind, free, node_kind, boot_done_s)
        for n in order:
            if free[n] >= left:
                break
            entries[ENTRY_NODE, at], entries[ENTRY_GPUS, at] = n, free[n]
            at += 1
            left -= free[n]
            free[n] = 0
        if left > 0:
            tight = _find_tightest(left, kind, free, node_kind, boot_done_s)
    if left > 0:
        free[tight] -= left
        entries[ENTRY_NODE, at], entries[ENTRY_GPUS, at] = tight, left
        at += 1
    sort_by_node(entries, start, at)
    return at


@inner
def _assign_nodes(
    plan_row: Ints, plan_gpus: Ints, outcome: Ints, free_gpus: Ints, node_kind: Ints, boot_done_s: Floats
) -> NodeEntries:
    """Return nodes for the selected leaders that do not stay, in the order of the plan."""
    free = free_gpus.copy()
    leader_of, kind_of, stays = outcome[OUTCOME_LEADER], outcome[OUTCOME_KIND], outcome[OUTCOME_STAYS]
    count = 0  # at most one node per GPU, and each node at most once per job
    for p in range(len(plan_row)):
        i = plan_row[p]
        if leader_of[i] == i and kind_of[i] >= 0 and not stays[i]:
            count += min(plan_gpus[p], len(free))
    entry_range = np.zeros((2, len(kind_of)), dtype=np.int64)
    entries = np.empty((2, count), dtype=np.int64)
    at = 0
    for p in range(len(plan_row)):
        i = plan_row[p]
        if leader_of[i] == i and kind_of[i] >= 0 and not stays[i]:
            entry_range[0, i] = at
            at = _take_gpus(plan_gpus[p], kind_of[i], free, node_kind, boot_done_s, entries, at)
            entry_range[1, i] = at
    return entry_range, entries


@inner
def _is_plain(plan: PlanColumns, queue: Floats) -> bool:
    """Return whether a plan has all jobs of the queue in its order, each alone and with GPUs."""
    row, gpus, group, _, _ = plan
    if len(row) != queue.shape[1]:
        return False
    plain = True
    for p in range(len(row)):
        plain = plain and row[p] == p and group[p] == p and gpus[p] > 0
    return plain


@inner
def _find_waiting(plan: PlanColumns, nodes: NodeColumns, room: Ints, queue: Floats, leases: Ints) -> Ints:
    """Return by job without GPUs its row, its kind and the first lease behind it, if all jobs fit.

    Jobs that run stay, and their GPUs are taken from *room*. If a job cannot stay, or one has no room, the
    result has a single column of -1.
    """
    none = np.full((3, 1), -1, dtype=np.int64)
    waiting = np.empty((3, queue.shape[1]), dtype=np.int64)
    count = r = 0
    for i in range(queue.shape[1]):
        if r == leases.shape[1] or leases[LEASE_JOB, r] != queue[QUEUE_JOB, i]:
            waiting[0, count], waiting[2, count] = i, r
            count += 1
            continue
        held = nodes.kind[leases[LEASE_NODE, r]]
        allowed = (int(queue[QUEUE_ACCEPTED_KINDS, i]) >> held) & 1 == 1
        if leases[LEASE_GROUP, r] != leases[LEASE_JOB, r] or not allowed:
            return none
        if queue[QUEUE_HELD_GPUS, i] != plan.gpus[i] or room[held] < plan.gpus[i]:
            return none
        room[held] -= plan.gpus[i]
        while r < leases.shape[1] and leases[LEASE_JOB, r] == queue[QUEUE_JOB, i]:
            r += 1
    for w in range(count):
        i = waiting[0, w]
        kind = 0
        while kind < len(room) and not (
            room[kind] >= plan.gpus[i] and (int(queue[QUEUE_ACCEPTED_KINDS, i]) >> kind) & 1
        ):
            kind += 1
        if kind == len(room):
            return none
        room[kind] -= plan.gpus[i]
        waiting[1, w] = kind
    return waiting[:, :count].copy()


@inner
def _add_starts(
    plan: PlanColumns, nodes: NodeColumns, free: Ints, queue: Floats, leases: Ints, waiting: Ints
) -> Ints:
    """Return the block of *leases* and those of the *waiting* jobs, which all start; others stay."""
    count = waiting.shape[1]
    most = 0
    for w in range(count):
        most += min(plan.gpus[waiting[0, w]], len(free))
    entries = np.empty((2, most), dtype=np.int64)
    ends = np.zeros(count + 1, dtype=np.int64)
    for w in range(count):
        need, kind = plan.gpus[waiting[0, w]], waiting[1, w]
        ends[w + 1] = _take_gpus(need, kind, free, nodes.kind, nodes.boot_done_s, entries, ends[w])
    block = np.zeros((LEASE_ROWS, leases.shape[1] + ends[count]), dtype=np.int64)
    for w in range(count + 1):
        start = waiting[2, w - 1] if w > 0 else 0
        end = waiting[2, w] if w < count else leases.shape[1]
        for c in (LEASE_JOB, LEASE_GROUP, LEASE_NODE, LEASE_GPUS):
            block[c, start + ends[w] : end + ends[w]] = leases[c, start:end]
        for e in range(ends[w], ends[w + 1] if w < count else ends[w]):
            block[LEASE_JOB, end + e] = block[LEASE_GROUP, end + e] = int(queue[QUEUE_JOB, waiting[0, w]])
            block[LEASE_NODE, end + e] = entries[ENTRY_NODE, e]
            block[LEASE_GPUS, end + e] = entries[ENTRY_GPUS, e]
    return block


@kernel(PLAN_COLUMNS, NODE_COLUMNS, INT, I1, F2, I2, INT, F1, I1, I1, I1)
def _pack(
    plan: PlanColumns,
    nodes: NodeColumns,
    kinds: int,
    node_free_gpus: Ints,
    queue: Floats,
    leases: Ints,
    mode: int,
    remaining_s: Floats,
    excluded_kinds: Ints,
    cap_w: Ints,
    batch: Ints,
) -> tuple[Ints, Ints, bool, int, bool, int]:
    """Select jobs, find their nodes and write their leases in one call.

    Return the reason by row of the queue, the block of leases, whether it is new, the number of waiting jobs,
    whether *remaining_s* is needed, and an invalid entry or -1. The usual round, in which all jobs that wait
    can start and no other is touched, is settled without a selection.
    """
    keeps_kinds = plan.non_preemptive or kinds == 1  # else an earlier job may take the GPUs of a later one
    if keeps_kinds and len(excluded_kinds) + len(cap_w) + len(batch) == 0 and _is_plain(plan, queue):
        starts = _find_waiting(plan, nodes, count_gpus(nodes, kinds).up, queue, leases)
        if starts.shape[1] == 0 or starts[0, 0] >= 0:
            block = _add_starts(plan, nodes, node_free_gpus.copy(), queue, leases, starts)
            return np.zeros(queue.shape[1], dtype=np.int64), block, differ(block, leases), 0, False, -1
    outcome, free_gpus, _, waiting, needs_remaining, invalid = select_rows(
        plan, nodes, kinds, node_free_gpus, queue, leases, mode, remaining_s, excluded_kinds
    )
    if invalid >= 0 or needs_remaining:
        empty = np.empty((0, 0), dtype=np.int64)
        return outcome[OUTCOME_REASON], empty, False, 0, needs_remaining, invalid
    entry_range, entries = _assign_nodes(
        plan.row, plan.gpus, outcome, free_gpus, nodes.kind, nodes.boot_done_s
    )
    host = np.empty((3, 0), dtype=np.int64)  # all have their proportional share
    block, changed = build_block(plan.row, cap_w, batch, outcome, queue, leases, entry_range, entries, host)
    return outcome[OUTCOME_REASON], block, changed, waiting, needs_remaining, invalid
