"""Places by moving others: leaders that are on one node, with all of their groups."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Ints
from wattline.jit import inner
from wattline.placement.buddy.free_blocks import (
    AFTER,
    BEFORE,
    DEPTH,
    FIRST,
    FREE,
    KIND,
    LOCK,
    NEED,
    ON,
    SHAPE,
    SIZE,
    STALE,
    empties,
    enough,
    give,
    next_size,
)


@inner
def enter(nodes: Ints, folk: Ints, i: int, n: int) -> None:
    """Leader *i* is on node *n* from now on."""
    folk[ON, i] = n
    folk[BEFORE, i], folk[AFTER, i] = -1, nodes[FIRST, n]
    if nodes[FIRST, n] >= 0:
        folk[BEFORE, nodes[FIRST, n]] = i
    nodes[FIRST, n] = i


@inner
def leave(nodes: Ints, folk: Ints, i: int) -> None:
    """Leader *i* is on its node no more."""
    if folk[BEFORE, i] >= 0:
        folk[AFTER, folk[BEFORE, i]] = folk[AFTER, i]
    else:
        nodes[FIRST, folk[ON, i]] = folk[AFTER, i]
    if folk[AFTER, i] >= 0:
        folk[BEFORE, folk[AFTER, i]] = folk[BEFORE, i]
    folk[ON, i] = -1


@inner
def _move(nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints, folk: Ints, i: int, to: int) -> None:
    give(nodes, shapes, rooms, folk[ON, i], folk[NEED, i])
    leave(nodes, folk, i)
    enter(nodes, folk, i, to)
    give(nodes, shapes, rooms, to, -folk[NEED, i])
    flags[STALE] = 1


@inner
def _sort_down(who: Ints, count: int, need: Ints) -> None:
    """The first *count* of *who* by need, the largest first; among equals who came last."""
    for a in range(1, count):
        b = a
        while b > 0 and (
            need[who[b]] > need[who[b - 1]] or (need[who[b]] == need[who[b - 1]] and who[b] > who[b - 1])
        ):
            who[b - 1], who[b] = who[b], who[b - 1]
            b -= 1


@inner
def _who_goes(nodes: Ints, folk: Ints, n: int, asked: int, who: Ints) -> int:
    """The few and small jobs that make *asked* GPUs of node *n* free by going; 0: nobody can."""
    need = folk[NEED]
    count = 0
    i = nodes[FIRST, n]
    while i >= 0:
        if need[i] < asked:
            who[count] = i
            count += 1
        i = folk[AFTER, i]
    _sort_down(who, count, need)
    # The largest first of those that are not more than what is missing: exact for powers of two.
    lack = asked - nodes[FREE, n]
    going = 0
    for a in range(count):
        i = who[a]
        if need[i] <= lack:
            lack -= need[i]
            for b in range(a, going, -1):
                who[b] = who[b - 1]
            who[going] = i
            going += 1
    if lack <= 0:
        return going
    if going == count:
        return 0
    who[going], who[count - 1] = who[count - 1], who[going]  # the smallest of the others; any is enough
    over = need[who[going]] - lack
    kept = 0
    for a in range(going):  # some of the first may now stay
        if need[who[a]] <= over:
            over -= need[who[a]]
        else:
            who[kept] = who[a]
            kept += 1
    who[kept] = who[going]
    _sort_down(who, kept + 1, need)
    return kept + 1


@inner
def _all_find_room(nodes_with: Ints, here: int, who: Ints, count: int, need: Ints, found: Ints) -> bool:
    """Whether *who* fit, one after the other, on nodes with so much room; not on their own, with *here*."""
    nodes_with[here] -= 1
    seated = 0
    while seated < count:
        room = need[who[seated]]
        while room < len(nodes_with) and nodes_with[room] <= 0:
            room += 1
        if room >= len(nodes_with):
            break
        nodes_with[room] -= 1
        nodes_with[room - need[who[seated]]] += 1
        found[seated] = room
        seated += 1
    for a in range(seated):
        nodes_with[found[a]] += 1
        nodes_with[found[a] - need[who[a]]] -= 1
    nodes_with[here] += 1
    return seated == count


@inner
def _tightest(nodes: Ints, shapes: Ints, need: int, kind: int) -> int:
    """The node with the least room that is enough; -1: none is."""
    best = -1
    for n in range(nodes.shape[1]):
        if nodes[KIND, n] != kind or nodes[FREE, n] < need or nodes[LOCK, n] > 0:
            continue
        deeper = 0 if best < 0 else shapes[DEPTH, nodes[SHAPE, n]] - shapes[DEPTH, nodes[SHAPE, best]]
        more = -1 if best < 0 else nodes[FREE, n] - nodes[FREE, best]
        if more < 0 or (more == 0 and deeper < 0):
            best = n
    return best


@inner
def _may_host(nodes: Ints, n: int, asked: int, kind: int, widest: int) -> bool:
    """Whether *asked* GPUs of this node could be made free, and it has at most *widest*."""
    return bool(nodes[KIND, n] == kind and nodes[LOCK, n] == 0 and asked <= nodes[SIZE, n] <= widest)


@inner
def _host(nodes: Ints, folk: Ints, asked: int, kind: int, widest: int, who: Ints) -> int:
    """The node with most room of those whose jobs could make *asked* free; -1: none is."""
    best = -1
    for n in range(nodes.shape[1]):
        if best >= 0 and nodes[FREE, n] <= nodes[FREE, best]:
            continue
        if _may_host(nodes, n, asked, kind, widest) and _who_goes(nodes, folk, n, asked, who) > 0:
            best = n
    return best


@inner
def _best_host(nodes: Ints, rooms: Ints, folk: Ints, asked: int, kind: int, widest: int, who: Ints) -> int:
    """The node from which the fewest GPUs go, each to a node that has room; -1: there is none."""
    found = np.empty(len(who), dtype=np.int64)
    nodes_with = np.zeros(rooms.shape[1], dtype=np.int64)
    for n in range(nodes.shape[1]):
        if nodes[KIND, n] == kind and nodes[LOCK, n] == 0:
            nodes_with[nodes[FREE, n]] += 1
    best, best_gpus, best_jobs = -1, asked + rooms.shape[1], 0
    for lack in range(1, asked + 1):  # at least so many GPUs go, and one job
        if lack > best_gpus or (lack == best_gpus and best_jobs == 1):
            break
        if nodes_with[asked - lack] == 0:
            continue
        for n in range(nodes.shape[1]):
            if nodes[FREE, n] != asked - lack or not _may_host(nodes, n, asked, kind, widest):
                continue
            jobs = _who_goes(nodes, folk, n, asked, who)
            gpus = 0
            for a in range(jobs):
                gpus += folk[NEED, who[a]]
            better = jobs > 0 and (gpus < best_gpus or (gpus == best_gpus and jobs < best_jobs))
            if better and _all_find_room(nodes_with, nodes[FREE, n], who, jobs, folk[NEED], found):
                best, best_gpus, best_jobs = n, gpus, jobs
                if gpus == lack and jobs == 1:
                    return best
    return best


@inner
def _copy_back(to: Ints, saved: Ints) -> None:
    for row in range(to.shape[0]):
        for column in range(to.shape[1]):
            to[row, column] = saved[row, column]


@inner
def make_room(
    nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints, folk: Ints, need: int, kind: int, widest: int
) -> int:
    """Move others so that *need* GPUs are free on one node of at most *widest*; answers which, or -1.

    The fewest that find room elsewhere as it is, or else others make room for them in turn.
    """
    if need >= rooms.shape[1]:
        return -1  # no node is as large as that
    who = np.empty(folk.shape[1] + 1, dtype=np.int64)
    n = _best_host(nodes, rooms, folk, need, kind, widest, who)
    if n < 0:
        return _make_room_in_turns(nodes, shapes, rooms, flags, folk, need, kind, widest, who)
    nodes[LOCK, n] = 1
    for a in range(_who_goes(nodes, folk, n, need, who)):
        to = _tightest(nodes, shapes, folk[NEED, who[a]], kind)
        _move(nodes, shapes, rooms, flags, folk, who[a], to)
    nodes[LOCK, n] = 0
    return n


@inner
def _make_room_in_turns(
    nodes: Ints,
    shapes: Ints,
    rooms: Ints,
    flags: Ints,
    folk: Ints,
    need: int,
    kind: int,
    widest: int,
    who: Ints,
) -> int:
    """Like `make_room`, from the node with most room; for who has to go room is made in the same way.

    With power-of-two jobs on equal power-of-two nodes that never fails if enough GPUs are free: what
    has to leave a node is exactly what it lacks, which is free elsewhere; and among smaller jobs the
    same holds again.
    """
    n = _host(nodes, folk, need, kind, widest, who)
    if n < 0:
        return -1
    line = np.empty(folk.shape[1] + 1, dtype=np.int64)  # who has to go, host after host
    hosts = np.empty(need + 1, dtype=np.int64)  # each is asked for less than the one before
    at = np.empty(need + 1, dtype=np.int64)
    end = np.empty(need + 1, dtype=np.int64)
    was_nodes, was_shapes, was_rooms, was_folk = nodes.copy(), shapes.copy(), rooms.copy(), folk.copy()
    asked, top, moves = need, -1, 0
    while n >= 0 and moves <= 32 * need:  # sizes that are no powers of two might go round in circles
        start = 0 if top < 0 else end[top]
        top += 1
        hosts[top], at[top] = n, start
        end[top] = start + _who_goes(nodes, folk, n, asked, who)
        for a in range(start, end[top]):
            line[a] = who[a - start]
        nodes[LOCK, n] = 1
        while True:
            if at[top] == end[top]:  # all who had to have left this host
                n = hosts[top]
                nodes[LOCK, n] = 0
                if top == 0:
                    return int(n)
                top -= 1
            else:
                asked = folk[NEED, line[at[top]]]
                n = _tightest(nodes, shapes, asked, kind)
                if n < 0:
                    n = _host(nodes, folk, asked, kind, rooms.shape[1], who)
                    break
            _move(nodes, shapes, rooms, flags, folk, line[at[top]], n)
            at[top] += 1
            moves += 1
    _copy_back(nodes, was_nodes)
    _copy_back(shapes, was_shapes)
    _copy_back(rooms, was_rooms)
    _copy_back(folk, was_folk)
    flags[STALE] = 1
    return -1


@inner
def make_whole_nodes(
    nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints, folk: Ints, need: int, kind: int
) -> int:
    """Move others so that there are `enough` nodes for a job larger than a node; answers like that."""
    was_nodes, was_shapes, was_rooms, was_folk = nodes.copy(), shapes.copy(), rooms.copy(), folk.copy()
    for n in range(nodes.shape[1]):
        if nodes[FREE, n] == nodes[SIZE, n]:
            nodes[LOCK, n] = 1  # what is empty stays so
    left = need
    size = next_size(shapes, kind, rooms.shape[1])
    while size > 0:
        have = empties(shapes, kind, size, 2)
        while have < left // size:
            n = make_room(nodes, shapes, rooms, flags, folk, size, kind, size)
            if n < 0:
                break
            nodes[LOCK, n] = 1
            have += 1
        left -= min(left // size, have) * size
        size = next_size(shapes, kind, size)
    depth = enough(shapes, rooms, need, kind)
    if depth < 0:
        make_room(nodes, shapes, rooms, flags, folk, left, kind, rooms.shape[1])
        depth = enough(shapes, rooms, need, kind)
    if depth < 0:
        _copy_back(nodes, was_nodes)
        _copy_back(shapes, was_shapes)
        _copy_back(rooms, was_rooms)
        _copy_back(folk, was_folk)
        flags[STALE] = 1
    for n in range(nodes.shape[1]):
        nodes[LOCK, n] = was_nodes[LOCK, n]
    return depth
