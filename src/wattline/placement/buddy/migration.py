"""Migration of running jobs that makes room for others: leaders on one node, with all of their groups."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Ints
from wattline.jit import inner
from wattline.placement.buddy.free_blocks import (
    HEAPS_STALE,
    LEADER_NEED,
    LEADER_NEXT,
    LEADER_NODE,
    LEADER_PREVIOUS,
    NODE_FIRST_JOB,
    NODE_FREE,
    NODE_KIND,
    NODE_LOCK,
    NODE_SHAPE,
    NODE_SIZE,
    SHAPE_POWER,
    STATE_OFF,
    BuddyState,
    add_free_gpus,
    count_empty_nodes,
    find_power_for_whole_nodes,
    next_smaller_size,
)


@inner
def add_to_node(nodes: Ints, leaders: Ints, i: int, n: int) -> None:
    """Add leader *i* to the list of node *n*."""
    leaders[LEADER_NODE, i] = n
    leaders[LEADER_PREVIOUS, i], leaders[LEADER_NEXT, i] = -1, nodes[NODE_FIRST_JOB, n]
    if nodes[NODE_FIRST_JOB, n] >= 0:
        leaders[LEADER_PREVIOUS, nodes[NODE_FIRST_JOB, n]] = i
    nodes[NODE_FIRST_JOB, n] = i


@inner
def remove_from_node(nodes: Ints, leaders: Ints, i: int) -> None:
    """Remove leader *i* from the list of its node."""
    if leaders[LEADER_PREVIOUS, i] >= 0:
        leaders[LEADER_NEXT, leaders[LEADER_PREVIOUS, i]] = leaders[LEADER_NEXT, i]
    else:
        nodes[NODE_FIRST_JOB, leaders[LEADER_NODE, i]] = leaders[LEADER_NEXT, i]
    if leaders[LEADER_NEXT, i] >= 0:
        leaders[LEADER_PREVIOUS, leaders[LEADER_NEXT, i]] = leaders[LEADER_PREVIOUS, i]
    leaders[LEADER_NODE, i] = -1


@inner
def move(state: BuddyState, i: int, to: int) -> None:
    """Move leader *i* to node *to*."""
    nodes, _, _, flags, leaders = state
    add_free_gpus(state, leaders[LEADER_NODE, i], leaders[LEADER_NEED, i])
    remove_from_node(nodes, leaders, i)
    add_to_node(nodes, leaders, i, to)
    add_free_gpus(state, to, -leaders[LEADER_NEED, i])
    flags[HEAPS_STALE] = 1


@inner
def sort_by_need(moving: Ints, count: int, need: Ints) -> None:
    """Sort the first *count* of *moving* by need, the largest first; of equals the last submitted first."""
    for a in range(1, count):
        b = a
        while b > 0 and (
            need[moving[b]] > need[moving[b - 1]]
            or (need[moving[b]] == need[moving[b - 1]] and moving[b] > moving[b - 1])
        ):
            moving[b - 1], moving[b] = moving[b], moving[b - 1]
            b -= 1


@inner
def _pick_moving(nodes: Ints, leaders: Ints, n: int, wanted: int, moving: Ints) -> int:
    """Write to *moving* the few and small jobs that free *wanted* GPUs of node *n*; return their number.

    0: no choice of jobs smaller than *wanted* frees as many.
    """
    need = leaders[LEADER_NEED]
    count = 0
    i = nodes[NODE_FIRST_JOB, n]
    while i >= 0:
        if need[i] < wanted:
            moving[count] = i
            count += 1
        i = leaders[LEADER_NEXT, i]
    sort_by_need(moving, count, need)
    # The largest first of those that are not more than what is missing: exact for powers of two.
    missing = wanted - nodes[NODE_FREE, n]
    picked = 0
    for a in range(count):
        i = moving[a]
        if need[i] <= missing:
            missing -= need[i]
            for b in range(a, picked, -1):
                moving[b] = moving[b - 1]
            moving[picked] = i
            picked += 1
    if missing <= 0:
        return picked
    if picked == count:
        return 0
    # The smallest of the others; any is enough.
    moving[picked], moving[count - 1] = moving[count - 1], moving[picked]
    excess = need[moving[picked]] - missing
    still_moving = 0
    for a in range(picked):  # some of the first may now stay
        if need[moving[a]] <= excess:
            excess -= need[moving[a]]
        else:
            moving[still_moving] = moving[a]
            still_moving += 1
    moving[still_moving] = moving[picked]
    sort_by_need(moving, still_moving + 1, need)
    return still_moving + 1


@inner
def _can_place_all(
    nodes_with: Ints, room_here: int, moving: Ints, count: int, need: Ints, target: Ints
) -> bool:
    """Return whether the first *count* of *moving* fit, one after the other, on other nodes.

    *nodes_with* is the number of nodes by free GPUs; their own node has *room_here*.
    """
    nodes_with[room_here] -= 1
    placed = 0
    while placed < count:
        room = need[moving[placed]]
        while room < len(nodes_with) and nodes_with[room] <= 0:
            room += 1
        if room >= len(nodes_with):
            break
        nodes_with[room] -= 1
        nodes_with[room - need[moving[placed]]] += 1
        target[placed] = room
        placed += 1
    for a in range(placed):
        nodes_with[target[a]] += 1
        nodes_with[target[a] - need[moving[a]]] -= 1
    nodes_with[room_here] += 1
    return placed == count


@inner
def _find_best_fit(nodes: Ints, shapes: Ints, need: int, kind: int) -> int:
    """Return the unlocked node with the least room that is enough; -1: none is."""
    best = -1
    for n in range(nodes.shape[1]):
        if nodes[NODE_KIND, n] != kind or nodes[NODE_FREE, n] < need or nodes[NODE_LOCK, n] > 0:
            continue
        later = (
            0
            if best < 0
            else shapes[SHAPE_POWER, nodes[NODE_SHAPE, n]] - shapes[SHAPE_POWER, nodes[NODE_SHAPE, best]]
        )
        more = -1 if best < 0 else nodes[NODE_FREE, n] - nodes[NODE_FREE, best]
        if more < 0 or (more == 0 and later < 0):
            best = n
    return best


@inner
def _is_candidate(nodes: Ints, n: int, wanted: int, kind: int, widest: int) -> bool:
    """Return whether the unlocked node has at least *wanted* and at most *widest* GPUs."""
    return bool(
        nodes[NODE_KIND, n] == kind and nodes[NODE_LOCK, n] == 0 and wanted <= nodes[NODE_SIZE, n] <= widest
    )


@inner
def _find_emptiest(nodes: Ints, leaders: Ints, wanted: int, kind: int, widest: int, moving: Ints) -> int:
    """Return the node with most room among those with jobs that could free *wanted* GPUs; -1: none is."""
    best = -1
    for n in range(nodes.shape[1]):
        if best >= 0 and nodes[NODE_FREE, n] <= nodes[NODE_FREE, best]:
            continue
        if (
            _is_candidate(nodes, n, wanted, kind, widest)
            and _pick_moving(nodes, leaders, n, wanted, moving) > 0
        ):
            best = n
    return best


@inner
def _find_cheapest(state: BuddyState, wanted: int, kind: int, widest: int, moving: Ints) -> int:
    """Return the node from which the fewest GPUs move, each to a node that has room; -1: there is none."""
    nodes, _, partial, _, leaders = state
    target = np.empty(len(moving), dtype=np.int64)
    nodes_with = np.zeros(partial.shape[1], dtype=np.int64)
    for n in range(nodes.shape[1]):
        if nodes[NODE_KIND, n] == kind and nodes[NODE_LOCK, n] == 0:
            nodes_with[nodes[NODE_FREE, n]] += 1
    best, best_gpus, best_jobs = -1, wanted + partial.shape[1], 0
    for missing in range(1, wanted + 1):  # at least so many GPUs move, and one job
        if missing > best_gpus or (missing == best_gpus and best_jobs == 1):
            break
        if nodes_with[wanted - missing] == 0:
            continue
        for n in range(nodes.shape[1]):
            if nodes[NODE_FREE, n] != wanted - missing or not _is_candidate(nodes, n, wanted, kind, widest):
                continue
            jobs = _pick_moving(nodes, leaders, n, wanted, moving)
            gpus = 0
            for a in range(jobs):
                gpus += leaders[LEADER_NEED, moving[a]]
            better = jobs > 0 and (gpus < best_gpus or (gpus == best_gpus and jobs < best_jobs))
            if better and _can_place_all(
                nodes_with, nodes[NODE_FREE, n], moving, jobs, leaders[LEADER_NEED], target
            ):
                best, best_gpus, best_jobs = n, gpus, jobs
                if gpus == missing and jobs == 1:
                    return best
    return best


@inner
def _copy_state(state: BuddyState) -> BuddyState:
    nodes, shapes, partial, flags, leaders = state
    return BuddyState(nodes.copy(), shapes.copy(), partial.copy(), flags.copy(), leaders.copy())


@inner
def _copy_into(to: Ints, saved: Ints) -> None:
    for row in range(to.shape[0]):
        for column in range(to.shape[1]):
            to[row, column] = saved[row, column]


@inner
def _restore_state(state: BuddyState, saved: BuddyState) -> None:
    """Undo all moves since *saved* was copied; node entries stay."""
    _copy_into(state.nodes, saved.nodes)
    _copy_into(state.shapes, saved.shapes)
    _copy_into(state.partial, saved.partial)
    _copy_into(state.leaders, saved.leaders)
    state.flags[HEAPS_STALE] = 1


@inner
def defragment_node(state: BuddyState, need: int, kind: int, widest: int) -> int:
    """Move jobs so that *need* GPUs are free on one node of at most *widest*; return the node, or -1.

    The fewest GPUs move that find room elsewhere as it is; or else other jobs make room for them in turn.
    """
    nodes, shapes, partial, _, leaders = state
    if need >= partial.shape[1]:
        return -1  # no node is as large as that
    moving = np.empty(leaders.shape[1] + 1, dtype=np.int64)
    n = _find_cheapest(state, need, kind, widest, moving)
    if n < 0:
        return _defragment_in_turns(state, need, kind, widest, moving)
    nodes[NODE_LOCK, n] = 1
    for a in range(_pick_moving(nodes, leaders, n, need, moving)):
        to = _find_best_fit(nodes, shapes, leaders[LEADER_NEED, moving[a]], kind)
        move(state, moving[a], to)
    nodes[NODE_LOCK, n] = 0
    return n


@inner
def _defragment_in_turns(state: BuddyState, need: int, kind: int, widest: int, moving: Ints) -> int:
    """Free *need* GPUs on the node with most room; make room for the jobs that move in the same way.

    With power-of-two jobs on equal power-of-two nodes that never fails if enough GPUs are free: what
    has to leave a node is exactly what it lacks, which is free elsewhere; and among smaller jobs the
    same holds again.
    """
    nodes, shapes, partial, _, leaders = state
    n = _find_emptiest(nodes, leaders, need, kind, widest, moving)
    if n < 0:
        return -1
    stack = np.empty(leaders.shape[1] + 1, dtype=np.int64)  # jobs to move, node after node
    clearing = np.empty(need + 1, dtype=np.int64)  # nodes; each has to free less than the one before
    at = np.empty(need + 1, dtype=np.int64)
    end = np.empty(need + 1, dtype=np.int64)
    saved = _copy_state(state)
    wanted, top, moves = need, -1, 0
    while n >= 0 and moves <= 32 * need:  # sizes that are no powers of two might go round in circles
        start = 0 if top < 0 else end[top]
        top += 1
        clearing[top], at[top] = n, start
        end[top] = start + _pick_moving(nodes, leaders, n, wanted, moving)
        for a in range(start, end[top]):
            stack[a] = moving[a - start]
        nodes[NODE_LOCK, n] = 1
        while True:
            if at[top] == end[top]:  # all jobs that had to leave this node have left
                n = clearing[top]
                nodes[NODE_LOCK, n] = 0
                if top == 0:
                    return int(n)
                top -= 1
            else:
                wanted = leaders[LEADER_NEED, stack[at[top]]]
                n = _find_best_fit(nodes, shapes, wanted, kind)
                if n < 0:
                    n = _find_emptiest(nodes, leaders, wanted, kind, partial.shape[1], moving)
                    break
            move(state, stack[at[top]], n)
            at[top] += 1
            moves += 1
    _restore_state(state, saved)
    return -1


@inner
def defragment_whole_nodes(state: BuddyState, need: int, kind: int) -> int:
    """Move jobs so that there are enough nodes for a job larger than a node.

    Return the same as `find_power_for_whole_nodes`.
    """
    nodes, shapes, partial, _, _ = state
    saved = _copy_state(state)
    for n in range(nodes.shape[1]):
        if nodes[NODE_FREE, n] == nodes[NODE_SIZE, n]:
            nodes[NODE_LOCK, n] = 1  # what is empty stays so
    left = need
    size = next_smaller_size(shapes, kind, partial.shape[1])
    while size > 0:
        have = count_empty_nodes(shapes, kind, size, STATE_OFF)
        while have < left // size:
            n = defragment_node(state, size, kind, size)
            if n < 0:
                break
            nodes[NODE_LOCK, n] = 1
            have += 1
        left -= min(left // size, have) * size
        size = next_smaller_size(shapes, kind, size)
    power = find_power_for_whole_nodes(state, need, kind)
    if power < 0:
        defragment_node(state, left, kind, partial.shape[1])
        power = find_power_for_whole_nodes(state, need, kind)
    if power < 0:
        _restore_state(state, saved)
    for n in range(nodes.shape[1]):
        nodes[NODE_LOCK, n] = saved.nodes[NODE_LOCK, n]
    return power
