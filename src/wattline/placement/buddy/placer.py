"""Buddy placement: blocks of a node or of a rack; running jobs move where fragments are in the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.leases import LEASE_GPUS, LEASE_NODE
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_HELD_GPUS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.jit import BOOL, F1, F2, I1, I2, INT, inner, kernel
from wattline.placement.buddy.free_blocks import (
    ENTRIES_USED,
    HEAPS_STALE,
    LEADER_NEED,
    LEADER_NODE,
    NODE_FREE,
    NODE_KIND,
    NODE_LOCK,
    NODE_SIZE,
    BuddyState,
    add_free_gpus,
    build_state,
    find_power_for_whole_nodes,
    take_on_one_node,
    take_whole_nodes,
)
from wattline.placement.buddy.gathering import gather_jobs
from wattline.placement.buddy.migration import (
    add_to_node,
    defragment_node,
    defragment_whole_nodes,
    remove_from_node,
)
from wattline.placement.kernel_arrays import (
    ENTRY_GPUS,
    ENTRY_NODE,
    NO_FLOATS,
    NODE_COLUMNS,
    PLAN_COLUMNS,
    NodeColumns,
    PlanColumns,
    index_leases,
    take_node_columns,
    take_plan_columns,
)
from wattline.placement.lease_builder import build_placement
from wattline.placement.selection import (
    NO_ROOM,
    OUTCOME_KIND,
    OUTCOME_LEADER,
    OUTCOME_REASON,
    OUTCOME_STAYS,
    OUTRANKED,
    Backfill,
    check_backfill,
    follow_leaders,
    select_jobs,
)

_MAX_SELECTIONS = 3  # jobs are selected again, by number of GPUs, when some find no nodes
_UNLIMITED = 1 << 62  # more GPUs than any job needs


@dataclass(frozen=True)
class Buddy:
    """All GPUs of a job or none, on one GPU kind; a job that fits on one node never spans several.

    A job takes the node with the least room that is enough, one that is partly used before one that
    is empty, so that whole nodes, groups of nodes and racks stay empty. A job larger than a node takes
    whole nodes: an aligned group of 2^k nodes of one rack where there is one, else nodes of the fewest
    racks; what is left of it goes to one more node. A job that keeps its size and kind keeps its GPUs, with
    two exceptions: where enough GPUs are free but not together, the fewest running GPUs are *moved* to
    other nodes so that a job can start; and where that is not enough a preemptive plan stops jobs of lower
    precedence. *backfill* says which jobs may overtake one that finds no nodes; see
    `wattline.placement.selection.select_jobs`. Under `easy` the emptiest nodes are reserved for the first of
    them.

    Power-of-two jobs on equal power-of-two nodes always find nodes if enough GPUs are free: the buddy
    system (Knowlton, CACM 1965) with migration, as in ElasticFlow (Gu et al., ASPLOS 2023).
    """

    backfill: Backfill = "easy"

    def __post_init__(self) -> None:
        check_backfill(self.backfill)

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Return leases for the plan, and a reason for every job without."""
        columns, nodes = take_plan_columns(plan), take_node_columns(snapshot)
        move_cost = NO_FLOATS
        if plan.move_cost is not None:
            move_cost = np.zeros(len(snapshot.queue))
            move_cost[plan.row] = plan.move_cost
        excluded_kinds = np.zeros(len(snapshot.queue), dtype=np.int64)
        for _ in range(_MAX_SELECTIONS):
            selection = select_jobs(plan, snapshot, models, self.backfill, excluded_kinds)
            entry_range, entries, outcome, excluded_kinds, is_stuck = _place_selected(
                columns,
                nodes,
                len(snapshot.nodes.kind.names),
                plan.non_preemptive and self.backfill == "easy",
                selection.outcome,
                selection.free_gpus,
                selection.unplaced,
                excluded_kinds,
                snapshot.queue.block,
                snapshot.leases.block,
                move_cost,
            )
            if not is_stuck:
                break
        selection = selection._replace(
            outcome=outcome, waiting=int(np.count_nonzero(outcome[OUTCOME_REASON]))
        )
        return build_placement(plan, snapshot, selection, (entry_range, entries))


@inner
def _place_job(
    state: BuddyState, entry_range: Ints, entries: Ints, i: int, kind: int, spans_nodes: bool
) -> bool:
    """Place leader *i*, if need be by moving others; return whether it found nodes."""
    need = state.leaders[LEADER_NEED, i]
    if spans_nodes:
        power = find_power_for_whole_nodes(state, need, kind)
        if power < 0:
            power = defragment_whole_nodes(state, need, kind)
        if power < 0:
            return False
        entry_range[0, i] = state.flags[ENTRIES_USED]
        take_whole_nodes(state, entries, need, kind, power)
        entry_range[1, i] = state.flags[ENTRIES_USED]
        return True
    n = take_on_one_node(state, need, kind)
    if n < 0:
        n = defragment_node(state, need, kind, state.partial.shape[1])
        if n < 0:
            return False
        add_free_gpus(state, n, -need)
    add_to_node(state.nodes, state.leaders, i, n)
    return True


@inner
def _preempt_later(
    state: BuddyState,
    outcome: Ints,
    leases: Ints,
    lease_start: Ints,
    later: Ints,
    was_on: Ints,
    i: int,
    kind: int,
    spans_nodes: bool,
) -> bool:
    """Take the GPUs of jobs *later* in the plan, the last first, until there are nodes for leader *i*.

    Return whether there are. Preempted jobs are marked by -1 in `OUTCOME_STAYS`; *was_on* is the node of
    each, -1: none, or several.
    """
    nodes, _, _, flags, leaders = state
    flags[HEAPS_STALE] = 1
    need = leaders[LEADER_NEED, i]
    for a in range(len(later) - 1, -1, -1):
        j = later[a]
        was_on[a] = -1
        if outcome[OUTCOME_STAYS, j] == 0 or outcome[OUTCOME_KIND, j] != kind:
            continue
        fits = False
        if leaders[LEADER_NODE, j] >= 0:  # it may have been moved there
            n = was_on[a] = leaders[LEADER_NODE, j]
            remove_from_node(nodes, leaders, j)
            add_free_gpus(state, n, leaders[LEADER_NEED, j])
            fits = nodes[NODE_FREE, n] >= need
        else:
            for r in range(lease_start[j], lease_start[j + 1]):
                n = leases[LEASE_NODE, r]
                add_free_gpus(state, n, leases[LEASE_GPUS, r])
                fits = fits or nodes[NODE_FREE, n] >= need
        outcome[OUTCOME_STAYS, j] = -1
        if (spans_nodes and find_power_for_whole_nodes(state, need, kind) >= 0) or (fits and not spans_nodes):
            return True
    return False


@inner
def _restore_preempted(
    state: BuddyState, outcome: Ints, leases: Ints, lease_start: Ints, later: Ints, was_on: Ints
) -> None:
    """Give preempted jobs their GPUs back if these are still free."""
    nodes, _, _, flags, leaders = state
    flags[HEAPS_STALE] = 1
    for a in range(len(later)):
        j = later[a]
        if outcome[OUTCOME_STAYS, j] >= 0:
            continue
        fits = was_on[a] < 0 or nodes[NODE_FREE, was_on[a]] >= leaders[LEADER_NEED, j]
        for r in range(lease_start[j], lease_start[j + 1]):
            fits = fits and (
                was_on[a] >= 0 or nodes[NODE_FREE, leases[LEASE_NODE, r]] >= leases[LEASE_GPUS, r]
            )
        outcome[OUTCOME_STAYS, j] = 1 if fits else 0
        if fits and was_on[a] >= 0:
            add_to_node(nodes, leaders, j, was_on[a])
            add_free_gpus(state, was_on[a], -leaders[LEADER_NEED, j])
        elif fits:
            for r in range(lease_start[j], lease_start[j + 1]):
                add_free_gpus(state, leases[LEASE_NODE, r], -leases[LEASE_GPUS, r])


@inner
def _reserve_emptiest(state: BuddyState, need: int, kind: int, largest: int) -> None:
    """Reserve the emptiest nodes for a job of *need* GPUs; *largest* is the size of the largest node."""
    nodes = state.nodes
    state.flags[HEAPS_STALE] = 1
    count = -(-need // largest)
    for free in range(state.partial.shape[1] - 1, 0, -1):
        for n in range(nodes.shape[1]):
            fits = nodes[NODE_KIND, n] == kind and nodes[NODE_SIZE, n] >= min(need, largest)
            if count > 0 and fits and nodes[NODE_FREE, n] == free:
                nodes[NODE_LOCK, n] = 2
                add_free_gpus(state, n, -free)
                count -= 1


@inner
def _find_largest_nodes(nodes: NodeColumns, kinds: int) -> Ints:
    """Return the size of the largest usable node of each kind."""
    kind, gpus, _, up, boot_done_s = nodes
    largest = np.zeros(kinds, dtype=np.int64)
    for n in range(len(gpus)):
        if up[n] or boot_done_s[n] > -np.inf:
            largest[kind[n]] = max(largest[kind[n]], gpus[n])
    return largest


@inner
def _add_running(
    state: BuddyState, queue: Floats, leases: Ints, lease_start: Ints, stays: Ints, excluded_kinds: Ints
) -> Bools:
    """Add the jobs that stay to their nodes; return a mask of the running jobs that keep their size.

    A job is not in the mask if the kind that it holds is excluded.
    """
    nodes, _, _, _, leaders = state
    goes_first = np.zeros(queue.shape[1], dtype=np.bool_)
    for i in range(queue.shape[1]):
        start, end = lease_start[i], lease_start[i + 1]
        if stays[i] and end == start + 1:
            add_to_node(nodes, leaders, i, leases[LEASE_NODE, start])
        if end > start and queue[QUEUE_HELD_GPUS, i] == leaders[LEADER_NEED, i]:
            goes_first[i] = (excluded_kinds[i] >> nodes[NODE_KIND, leases[LEASE_NODE, start]]) & 1 == 0
    return goes_first


@inner
def _write_single_nodes(
    state: BuddyState, outcome: Ints, leases: Ints, lease_start: Ints, entry_range: Ints, entries: Ints
) -> None:
    """Write the entries of jobs on one node that are new there; jobs that were moved do not stay."""
    leader_of, stays = outcome[OUTCOME_LEADER], outcome[OUTCOME_STAYS]
    leaders, flags = state.leaders, state.flags
    for i in range(outcome.shape[1]):
        if leader_of[i] == i and leaders[LEADER_NODE, i] >= 0:
            if stays[i] and leaders[LEADER_NODE, i] == leases[LEASE_NODE, lease_start[i]]:
                continue
            at = flags[ENTRIES_USED]
            stays[i] = 0
            entry_range[0, i], entry_range[1, i] = at, at + 1
            entries[ENTRY_NODE, at], entries[ENTRY_GPUS, at] = (
                leaders[LEADER_NODE, i],
                leaders[LEADER_NEED, i],
            )
            flags[ENTRIES_USED] += 1


@kernel(PLAN_COLUMNS, NODE_COLUMNS, INT, BOOL, I2, I1, INT, I1, F2, I2, F1)
def _place_selected(
    plan: PlanColumns,
    columns: NodeColumns,
    kinds: int,
    reserves: bool,
    selected: Ints,
    free_gpus: Ints,
    unplaced: int,
    was_excluded: Ints,
    queue: Floats,
    leases: Ints,
    move_cost: Floats,
) -> tuple[Ints, Ints, Ints, Ints, bool]:
    """Place the selected jobs in the order of the plan; move some if there are *move_cost* by row.

    Return node entries, the new outcome and excluded kinds, and whether a selected job found no nodes.
    """
    plan_row, plan_gpus, plan_group, _, non_preemptive = plan
    queued = queue.shape[1]
    outcome, excluded = selected.copy(), was_excluded.copy()
    entry_range = np.zeros((2, queued), dtype=np.int64)
    if unplaced == 0 and len(move_cost) == 0:
        return entry_range, np.empty((2, 0), dtype=np.int64), outcome, excluded, False
    # A node is taken as a whole at most once; each job has one entry besides.
    entries = np.empty((2, len(free_gpus) + 2 * queued), dtype=np.int64)
    leader_of, kind_of, stays = outcome[OUTCOME_LEADER], outcome[OUTCOME_KIND], outcome[OUTCOME_STAYS]
    state = build_state(free_gpus, columns, kinds, queued)
    largest = _find_largest_nodes(columns, kinds)
    need_of = state.leaders[LEADER_NEED]
    for p in range(len(plan_row)):
        need_of[plan_row[p]] = plan_gpus[p]
    lease_start = index_leases(queue, leases)
    goes_first = _add_running(state, queue, leases, lease_start, stays, was_excluded)

    is_stuck = has_head = False
    # By kind and whether the job spans nodes: the smallest need that found no nodes, and for which
    # preemption did not help. Room only shrinks, so a job that needs more need not try.
    too_large = np.full((kinds, 2), _UNLIMITED, dtype=np.int64)
    too_large_to_preempt = np.full((kinds, 2), _UNLIMITED, dtype=np.int64)
    # The order of the selection: under a non-preemptive plan running jobs go first. So a job that finds no
    # nodes finds none because of jobs before it, which will be there at the next decision, too.
    turns = 2 if non_preemptive else 1
    for turn in range(turns):
        for p in range(len(plan_row)):
            i = plan_row[p]
            kind, need = kind_of[i], plan_gpus[p]
            if leader_of[i] != i or stays[i]:
                continue
            if kind < 0:
                if turn < turns - 1 or outcome[OUTCOME_REASON, i] != NO_ROOM:
                    continue
            elif non_preemptive and goes_first[i] != (turn == 0):
                continue
            else:
                spans_nodes = need > largest[kind]
                size_class = int(spans_nodes)
                is_placed = False
                if need < too_large[kind, size_class]:
                    is_placed = _place_job(state, entry_range, entries, i, kind, spans_nodes)
                    if not is_placed:
                        too_large[kind, size_class] = need
                        for q in range(p + 1, len(plan_row)):  # the next selection can leave these out
                            waits = queue[QUEUE_HELD_GPUS, plan_row[q]] == 0
                            same_class = (plan_gpus[q] > largest[kind]) == spans_nodes
                            if waits and plan_gpus[q] >= need and same_class:
                                excluded[plan_row[q]] |= 1 << kind
                if not is_placed and not non_preemptive and need < too_large_to_preempt[kind, size_class]:
                    later = plan_row[p + 1 :]
                    was_on = np.empty(len(later), dtype=np.int64)
                    if _preempt_later(
                        state, outcome, leases, lease_start, later, was_on, i, kind, spans_nodes
                    ):
                        is_placed = _place_job(state, entry_range, entries, i, kind, spans_nodes)
                        too_large[kind, 0] = too_large[kind, 1] = _UNLIMITED  # there is more room now
                    else:
                        too_large_to_preempt[kind, size_class] = need
                    _restore_preempted(state, outcome, leases, lease_start, later, was_on)
                if is_placed:
                    excluded[i] &= ~(1 << kind)
                    continue
                is_stuck = True
                excluded[i] |= 1 << kind
                kind_of[i], outcome[OUTCOME_REASON, i] = -1, OUTRANKED if has_head else NO_ROOM
            if reserves and not has_head:
                for k in range(kinds):
                    if (excluded[i] >> k) & 1:
                        _reserve_emptiest(state, need, k, largest[k])
                        break
            has_head = True
    if len(move_cost) > 0:
        was_on = np.full(queued, -1, dtype=np.int64)
        for i in range(queued):
            if stays[i] and lease_start[i + 1] == lease_start[i] + 1:
                was_on[i] = leases[LEASE_NODE, lease_start[i]]
        gather_jobs(state, was_on, move_cost)
    follow_leaders(plan_row, plan_group, outcome)
    _write_single_nodes(state, outcome, leases, lease_start, entry_range, entries)
    return entry_range, entries, outcome, excluded, is_stuck
