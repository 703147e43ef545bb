"""The compiled part of the placer of rules: the walk through a plan."""

from __future__ import annotations

import numpy as np

from wattline.core.leases import LEASE_GPUS, LEASE_GROUP, LEASE_JOB, LEASE_NODE
from wattline.core.queue import QUEUE_ACCEPTED_KINDS, QUEUE_HELD_GPUS
from wattline.core.reasons import REASONS, Reason
from wattline.core.table import Bools, Floats, Ints
from wattline.jit import F1, F2, I1, I2, INT, inner, kernel
from wattline.placement.kernel_arrays import (
    ENTRY_GPUS,
    ENTRY_NODE,
    NODE_COLUMNS,
    PLAN_COLUMNS,
    NodeColumns,
    PlanColumns,
    index_leases,
    sort_by_node,
)
from wattline.placement.selection import (
    BACKFILL_MODES,
    NO_ROOM,
    OUTCOME_KIND,
    OUTCOME_LEADER,
    OUTCOME_REASON,
    OUTCOME_ROWS,
    OUTCOME_STAYS,
    OUTRANKED,
    follow_leaders,
)
from wattline.rules.backfill_heads import (
    STARTS,
    STAYS,
    UNDECIDED,
    WAITS,
    ReservationHeads,
    check_heads,
    leave_reserved,
    reserve_gpus,
)
from wattline.rules.node_search import NODE_RULES, ROW_RULES, NodeRules, RowRules, explain_row, find_nodes
from wattline.rules.use_limits import USE_RULES, UseRules, count_use, evict_jobs, find_exceeded

_HELD, _PREEMPTED = REASONS.index(Reason.HELD), REASONS.index(Reason.PREEMPTED)
_NONE, _EASY = BACKFILL_MODES.index("none"), BACKFILL_MODES.index("easy")
_MAINTENANCE, _RESERVED = REASONS.index(Reason.MAINTENANCE), REASONS.index(Reason.RESERVED)
_MOST_HEADS = 64
_FAILED_ROWS = 6
_FAILED_NEED, _FAILED_PARTITION, _FAILED_BLOCKED, _FAILED_KINDS, _FAILED_NODES, _FAILED_REASON = range(6)


@inner
def _release_changed(
    queue: Floats, leases: Ints, old_start: Ints, nodes: NodeColumns, keeps: Ints, accepted: Ints, free: Ints
) -> Bools:
    """Return which rows hold the GPUs that they are to have; add the GPUs of all others to *free*.

    *keeps* are the GPUs of each leader in the plan; 0: it leads no group.
    """
    holds = np.zeros(queue.shape[1], dtype=np.bool_)
    for i in range(queue.shape[1]):
        start, end = old_start[i], old_start[i + 1]
        if end == start or leases[LEASE_GROUP, start] != leases[LEASE_JOB, start]:
            continue  # it waits, or runs on the GPUs of another job
        kind = nodes.kind[leases[LEASE_NODE, start]]
        holds[i] = queue[QUEUE_HELD_GPUS, i] == keeps[i] and (accepted[i] >> kind) & 1 == 1
        if not holds[i]:
            for r in range(start, end):
                free[leases[LEASE_NODE, r]] += leases[LEASE_GPUS, r]
    return holds


@inner
def _find_failed(
    need: int, partition: int, blocked: int, kinds: int, most: int, failed: Ints, fails: int
) -> int:
    """Return an earlier search with the same rules that failed for at most so many GPUs; -1: none.

    Between searches nodes only fill up, so that this one fails, too.
    """
    for f in range(fails):
        if (
            failed[_FAILED_NEED, f] <= need
            and failed[_FAILED_PARTITION, f] == partition
            and failed[_FAILED_BLOCKED, f] == blocked
            and failed[_FAILED_KINDS, f] == kinds
            and failed[_FAILED_NODES, f] >= most
        ):
            return f
    return -1


@inner
def _sum_room(rules: NodeRules, free: Ints) -> Ints:
    """Return the free GPUs of all nodes, and of the nodes of each partition, by bit."""
    width = 1
    while rules.every.max() >> width:
        width += 1
    room = np.zeros(width, dtype=np.int64)
    for n in range(len(free)):
        if free[n] > 0:
            for b in range(width):
                if (rules.partitions[n] >> b) & 1:
                    room[b] += free[n]
    return room


@inner
def _count_room(partition: int, room: Ints) -> int:
    """Return at most how many GPUs are free in the partitions of a mask."""
    gpus = 0
    for b in range(len(room)):
        if (partition >> b) & 1:
            gpus += room[b]
    return gpus


@inner
def _write_entries(
    i: int, at: int, count: int, found: Ints, free: Ints, entry_range: Ints, entries: Ints
) -> int:
    """Take the nodes *found* for row *i*; return the end of the entries."""
    entry_range[0, i] = at
    for e in range(count):
        entries[ENTRY_NODE, at], entries[ENTRY_GPUS, at] = found[ENTRY_NODE, e], found[ENTRY_GPUS, e]
        free[found[ENTRY_NODE, e]] -= found[ENTRY_GPUS, e]
        at += 1
    sort_by_node(entries, entry_range[0, i], at)
    entry_range[1, i] = at
    return at


@inner
def _finish(
    plan: PlanColumns, nodes: NodeColumns, leases: Ints, old_start: Ints, status: Ints, outcome: Ints
) -> int:
    """Complete *outcome* from the *status* of all leaders; return the number of rows that wait."""
    for p in range(len(plan.row)):
        i = plan.row[p]
        if plan.group[p] == i and (status[i] == STAYS or status[i] == STARTS):
            outcome[OUTCOME_REASON, i] = 0
            if status[i] == STAYS:
                outcome[OUTCOME_STAYS, i] = 1
                outcome[OUTCOME_KIND, i] = nodes.kind[leases[LEASE_NODE, old_start[i]]]
    follow_leaders(plan.row, plan.group, outcome)
    waiting = 0
    for i in range(outcome.shape[1]):
        waiting += outcome[OUTCOME_REASON, i] != 0
    return waiting


@kernel(PLAN_COLUMNS, NODE_COLUMNS, NODE_RULES, ROW_RULES, USE_RULES, INT, I1, F2, I2, INT, F1, I1)
def place_rows(
    plan: PlanColumns,
    nodes: NodeColumns,
    rules: NodeRules,
    rows: RowRules,
    use: UseRules,
    kinds: int,
    node_free_gpus: Ints,
    queue: Floats,
    leases: Ints,
    mode: int,
    remaining_s: Floats,
    excluded_kinds: Ints,
) -> tuple[Ints, Ints, Ints, Ints, int, bool]:
    """Return the outcome, free GPUs, node entries, waiting jobs, and whether *remaining_s* is needed.

    Four turns: running jobs that nothing may stop, all others in the order of the plan, those that borrow
    beyond a limit of use, and those that were preempted, which may start on other nodes.
    """
    queued, count_nodes = queue.shape[1], len(node_free_gpus)
    outcome = np.empty((OUTCOME_ROWS, queued), dtype=np.int64)
    outcome[OUTCOME_LEADER] = -1
    outcome[OUTCOME_KIND] = -1
    outcome[OUTCOME_STAYS] = 0
    accepted = np.empty(queued, dtype=np.int64)
    for i in range(queued):
        outcome[OUTCOME_REASON, i] = _HELD if len(plan.reason) == 0 else plan.reason[i]
        accepted[i] = int(queue[QUEUE_ACCEPTED_KINDS, i])
        if len(excluded_kinds) > 0:
            accepted[i] &= ~excluded_kinds[i]
    partition, blocked = rows.partition.copy(), rows.blocked.copy()
    keeps = np.zeros(queued, dtype=np.int64)
    most_entries = 0
    for p in range(len(plan.row)):
        i, leader = plan.row[p], plan.group[p]
        outcome[OUTCOME_LEADER, i] = leader
        if leader == i:
            keeps[i] = plan.gpus[p]
            most_entries += min(plan.gpus[p], count_nodes)
        else:
            accepted[leader] &= accepted[i]
            partition[leader] &= partition[i]
            blocked[leader] |= blocked[i]
    old_start = index_leases(queue, leases)
    free = node_free_gpus.copy()
    holds = _release_changed(queue, leases, old_start, nodes, keeps, accepted, free)
    evicted, lends = np.zeros(queued, dtype=np.bool_), np.zeros(queued, dtype=np.bool_)
    used = np.zeros(use.most.shape, dtype=np.int64)
    for i in range(queued):
        if holds[i]:
            count_use(i, 1, keeps[i], use, used)
    status = np.zeros(queued, dtype=np.int64)
    entry_range = np.zeros((2, queued), dtype=np.int64)
    entries = np.empty((2, most_entries), dtype=np.int64)
    found = np.empty((2, count_nodes), dtype=np.int64)
    heads = ReservationHeads(
        np.zeros((_MOST_HEADS, count_nodes if mode == _EASY else 0), dtype=np.bool_),
        np.zeros(_MOST_HEADS, dtype=np.int64),
        np.zeros(_MOST_HEADS, dtype=np.int64),
        np.zeros(_MOST_HEADS),
    )
    heads_found, at, fails = 0, 0, 0
    on_few_nodes, left = False, np.empty_like(free)  # some head waits for few nodes: others may be free
    failed = np.zeros((_FAILED_ROWS, _MOST_HEADS), dtype=np.int64)
    room = _sum_room(rules, free)
    first_waiting = np.zeros(_MOST_HEADS, dtype=np.int64)  # partitions in which a job does not fit
    blocking = 0
    reserves = mode == _EASY and plan.non_preemptive
    for turn in range(4):
        for p in range(len(plan.row)):
            i, need = plan.row[p], plan.gpus[p]
            if plan.group[p] != i:
                continue
            if turn == 0:
                if plan.non_preemptive and holds[i]:
                    status[i] = STAYS
                continue
            if turn == 1 and status[i] != UNDECIDED:
                continue
            if turn > 1 and (status[i] != WAITS or not (lends[i] if turn == 2 else evicted[i])):
                continue
            if holds[i]:
                status[i] = STAYS
                continue
            status[i] = WAITS
            exceeded = find_exceeded(i, need, turn == 2, use, used)
            if exceeded >= 0:
                outcome[OUTCOME_REASON, i] = use.reason[exceeded]
                lends[i] = use.borrow[exceeded] == 1
                continue
            if turn == 1:
                outcome[OUTCOME_REASON, i] = OUTRANKED
            outranked = False
            for h in range(blocking):
                outranked = outranked or first_waiting[h] & partition[i] != 0
            if outranked and mode == _NONE:
                continue
            may_evict = turn == 1 and (rows.preempts[i] != 0 or not plan.non_preemptive)
            has_room = _count_room(partition[i], room) >= need
            if outranked and not has_room and not may_evict:
                continue  # the usual case of a long queue
            known = _find_failed(
                need, partition[i], blocked[i], accepted[i], rows.max_nodes[i], failed, fails
            )
            if known >= 0 and not may_evict and rows.named[i] == 0:
                reason = failed[_FAILED_REASON, known]
                outcome[OUTCOME_REASON, i] = OUTRANKED if reason == NO_ROOM and turn == 1 else reason
                continue
            count, kind, lacks_region = 0, -1, False
            if has_room:
                count, kind, lacks_region = find_nodes(
                    i, need, accepted[i], kinds, nodes, rules, rows, partition, blocked, free, found
                )
            if count > 0 and not check_heads(i, kind, count, found, heads, heads_found, remaining_s, False):
                if not on_few_nodes:
                    continue
                leave_reserved(i, heads, heads_found, remaining_s, free, left)
                count, kind, lacks_region = find_nodes(
                    i, need, accepted[i], kinds, nodes, rules, rows, partition, blocked, left, found
                )
                if count == 0 or not check_heads(
                    i, kind, count, found, heads, heads_found, remaining_s, False
                ):
                    continue
            if count == 0 and may_evict:
                count, kind = evict_jobs(
                    i,
                    p,
                    need,
                    accepted[i],
                    kinds,
                    plan,
                    nodes,
                    rules,
                    rows,
                    partition,
                    blocked,
                    free,
                    found,
                    status,
                    holds,
                    evicted,
                    leases,
                    old_start,
                    use,
                    used,
                    keeps,
                )
                if count > 0:
                    room = _sum_room(rules, free)
                    fails = 0
            if count > 0:
                check_heads(i, kind, count, found, heads, heads_found, remaining_s, True)
                at = _write_entries(i, at, count, found, free, entry_range, entries)
                for e in range(count):
                    for b in range(len(room)):
                        if (rules.partitions[found[ENTRY_NODE, e]] >> b) & 1:
                            room[b] -= found[ENTRY_GPUS, e]
                count_use(i, 1, need, use, used)
                status[i] = STARTS
                outcome[OUTCOME_KIND, i] = kind
                continue
            if turn > 1:
                continue
            reason = explain_row(
                i, need, accepted[i], kinds, nodes, rules, rows, partition, blocked, free, found, lacks_region
            )
            if reason != NO_ROOM or not outranked:
                outcome[OUTCOME_REASON, i] = reason
            if fails < _MOST_HEADS and reason in (NO_ROOM, _MAINTENANCE, _RESERVED) and rows.named[i] == 0:
                failed[_FAILED_NEED, fails], failed[_FAILED_REASON, fails] = need, reason
                failed[_FAILED_PARTITION, fails], failed[_FAILED_BLOCKED, fails] = partition[i], blocked[i]
                failed[_FAILED_KINDS, fails], failed[_FAILED_NODES, fails] = accepted[i], rows.max_nodes[i]
                fails += 1
            if reason != NO_ROOM or outranked or blocking == _MOST_HEADS:
                continue
            first_waiting[blocking] = partition[i]
            blocking += 1
            if reserves and free.max() > 0:
                if len(remaining_s) == 0:
                    return outcome, free, entry_range, entries, 0, True
                kind, shadow_s, extra = reserve_gpus(
                    i,
                    need,
                    accepted[i],
                    kinds,
                    nodes,
                    rules,
                    rows,
                    partition,
                    blocked,
                    free,
                    status,
                    remaining_s,
                    leases,
                    old_start,
                    entry_range,
                    entries,
                    heads.nodes[heads_found],
                )
                if kind >= 0:
                    heads.kind[heads_found] = kind
                    heads.extra[heads_found] = extra
                    heads.shadow_s[heads_found] = shadow_s
                    heads_found += 1
                    on_few_nodes = on_few_nodes or rows.max_nodes[i] < count_nodes
    for i in range(queued):
        if evicted[i] and status[i] == WAITS:
            outcome[OUTCOME_REASON, i] = _PREEMPTED
    waiting = _finish(plan, nodes, leases, old_start, status, outcome)
    return outcome, free, entry_range, entries, waiting, False
