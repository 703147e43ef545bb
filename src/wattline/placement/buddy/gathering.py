"""Jobs of nodes that are little used are moved together, so that nodes can be switched off."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import inner
from wattline.placement.buddy.free_blocks import (
    LEADER_NEED,
    LEADER_NEXT,
    NODE_FIRST_JOB,
    NODE_FREE,
    NODE_KIND,
    NODE_LOCK,
    NODE_SHAPE,
    NODE_SIZE,
    SHAPE_POWER,
    STATE_ON,
    BuddyState,
)
from wattline.placement.buddy.migration import move, sort_by_need


@inner
def gather_jobs(state: BuddyState, was_on: Ints, move_cost: Floats) -> None:
    """Empty nodes by moving their jobs to others that are partly used, while that costs less than 1 each.

    *was_on* is the node of each leader before this decision, -1: none; a leader that is elsewhere already is
    moved for nothing. The nodes with the fewest used GPUs come first.
    """
    nodes = state.nodes
    count = nodes.shape[1]
    moving = np.empty(state.leaders.shape[1], dtype=np.int64)
    target = np.empty(state.leaders.shape[1], dtype=np.int64)
    room = np.empty(count, dtype=np.int64)
    for used in range(1, state.partial.shape[1]):
        for n in range(count):
            if nodes[NODE_SIZE, n] - nodes[NODE_FREE, n] != used or not _is_partly_used(state, n):
                continue
            jobs = _list_jobs(state, n, used, was_on, move_cost, moving)
            if jobs > 0 and _find_targets(state, n, moving, jobs, target, room):
                for a in range(jobs):
                    move(state, moving[a], target[a])


@inner
def _is_partly_used(state: BuddyState, n: int) -> bool:
    """Return whether a node is on, has jobs and free GPUs, and none is reserved."""
    nodes = state.nodes
    return bool(
        0 < nodes[NODE_FREE, n] < nodes[NODE_SIZE, n]
        and nodes[NODE_LOCK, n] == 0
        and state.shapes[SHAPE_POWER, nodes[NODE_SHAPE, n]] == STATE_ON
    )


@inner
def _list_jobs(state: BuddyState, n: int, used: int, was_on: Ints, move_cost: Floats, moving: Ints) -> int:
    """Write the jobs of node *n* to *moving*, the largest first; return their number.

    0: some GPUs are held by a job that spans nodes, or moving all of them costs too much.
    """
    leaders = state.leaders
    jobs, cost = 0, 0.0
    i = state.nodes[NODE_FIRST_JOB, n]
    while i >= 0:
        moving[jobs] = i
        jobs += 1
        used -= leaders[LEADER_NEED, i]
        if was_on[i] == n:
            cost += move_cost[i]
        i = leaders[LEADER_NEXT, i]
    if used != 0 or not cost < 1:
        return 0
    sort_by_need(moving, jobs, leaders[LEADER_NEED])
    return jobs


@inner
def _find_targets(state: BuddyState, n: int, moving: Ints, jobs: int, target: Ints, room: Ints) -> bool:
    """Write the node for each job that leaves node *n*: the one with the least room that is enough.

    Return whether all of them find one among the nodes that are partly used.
    """
    nodes, need = state.nodes, state.leaders[LEADER_NEED]
    for m in range(nodes.shape[1]):
        is_open = m != n and nodes[NODE_KIND, m] == nodes[NODE_KIND, n] and _is_partly_used(state, m)
        room[m] = nodes[NODE_FREE, m] if is_open else 0
    for a in range(jobs):
        best = -1
        for m in range(len(room)):
            if room[m] >= need[moving[a]] and (best < 0 or room[m] < room[best]):
                best = m
        if best < 0:
            return False
        target[a] = best
        room[best] -= need[moving[a]]
    return True
