"""What is free, in blocks of GPUs and of whole nodes, and places there without moving anybody.

Compiled code is handed a few arrays and no objects, which numba would take minutes to compile: *nodes*;
*shapes*, kinds of nodes that differ in nothing; *rooms*, by kind and number of free GPUs; *folk*, the
leaders by row of the queue; *flags*. Lists of nodes are skew heaps, the lowest number on top. All share
two rows of links, because a node is in one list at most.
"""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import inner

FREE, SIZE, KIND, SHAPE, _END, _ORDER, _LEFT, _RIGHT, FIRST, LOCK = range(10)
# _END: the first node behind its shelf, which is a run of equal nodes of one rack
# _ORDER: 2^order empty nodes begin here, aligned in the shelf and part of no larger block; -1: none do
# FIRST: a leader that is on this node only; -1: nobody is
# LOCK: 0, or 1 while others are moved, 2 if it is kept for somebody
_OF_KIND, DEPTH, _OF_SIZE, _EMPTY, _BLOCKS = range(5)
# DEPTH: 0 awake, 1 booting, 2 off; _EMPTY: how many are; from _BLOCKS on: list of blocks of each order
NEED, ON, AFTER, BEFORE = range(4)
# ON: its node; -1: none, or several; AFTER, BEFORE: others on that node
STALE, USED = range(2)
# STALE: whether the lists have to be made again; USED: entries of the seats that are in use


@inner
def _is_shape(shapes: Ints, s: int, kind: int, depth: int, size: int) -> bool:
    return bool(shapes[_OF_KIND, s] == kind and shapes[DEPTH, s] == depth and shapes[_OF_SIZE, s] == size)


@inner
def survey(
    free: Ints, kind: Ints, kinds: int, size: Ints, rack: Ints, wakes_s: Floats
) -> tuple[Ints, Ints, Ints]:
    """The nodes, their shapes and their rooms; lists are not made yet."""
    count = len(free)
    orders = 1
    while 1 << orders <= count:
        orders += 1
    nodes = np.full((10, count), -1, dtype=np.int64)
    all_shapes = np.full((_BLOCKS + orders, count), -1, dtype=np.int64)
    widest = known = s = 0
    for n in range(count - 1, -1, -1):
        depth = 0 if wakes_s[n] == -np.inf else 2 if wakes_s[n] == np.inf else 1
        if known == 0 or not _is_shape(all_shapes, s, kind[n], depth, size[n]):  # neighbours are mostly alike
            s = 0
            while s < known and not _is_shape(all_shapes, s, kind[n], depth, size[n]):
                s += 1
            known = max(known, s + 1)
            all_shapes[_OF_KIND, s], all_shapes[DEPTH, s], all_shapes[_OF_SIZE, s] = kind[n], depth, size[n]
        alike = n + 1 < count and rack[n] == rack[n + 1] and kind[n] == kind[n + 1] and size[n] == size[n + 1]
        nodes[FREE, n], nodes[SIZE, n], nodes[KIND, n] = free[n], size[n], kind[n]
        nodes[SHAPE, n], nodes[_END, n], nodes[LOCK, n] = s, nodes[_END, n + 1] if alike else n + 1, 0
        widest = max(widest, size[n])
    shapes = all_shapes[:, :known].copy()
    rooms = np.zeros((2 * kinds, widest + 1), dtype=np.int64)  # of each kind how many nodes, and their list
    for s in range(known):
        shapes[_EMPTY, s] = 0
    for n in range(count):
        if free[n] == size[n]:
            shapes[_EMPTY, nodes[SHAPE, n]] += 1
        elif free[n] > 0:
            rooms[2 * kind[n], free[n]] += 1
    return nodes, shapes, rooms


@inner
def _meld(nodes: Ints, a: int, b: int) -> int:
    """One list of two; answers its top."""
    if a < 0 or b < 0:
        return max(a, b)
    top, other = min(a, b), max(a, b)
    at = top
    while True:
        below = nodes[_RIGHT, at]
        nodes[_RIGHT, at] = nodes[_LEFT, at]
        if below < 0:
            nodes[_LEFT, at] = other
            return top
        nodes[_LEFT, at] = min(below, other)
        other = max(below, other)
        at = nodes[_LEFT, at]


@inner
def _push(nodes: Ints, lists: Ints, row: int, column: int, n: int) -> None:
    nodes[_LEFT, n] = nodes[_RIGHT, n] = -1
    lists[row, column] = _meld(nodes, lists[row, column], n)


@inner
def _pop(nodes: Ints, lists: Ints, row: int, column: int) -> int:
    top = lists[row, column]
    lists[row, column] = _meld(nodes, nodes[_LEFT, top], nodes[_RIGHT, top])
    return int(top)


@inner
def _make_lists(nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints) -> None:
    """What is free, in lists; nothing to do unless they are stale."""
    if flags[STALE] == 0:
        return
    flags[STALE] = 0
    count = nodes.shape[1]
    order = nodes[_ORDER]
    for n in range(count):
        order[n] = 0 if nodes[FREE, n] == nodes[SIZE, n] else -1
    start = 0
    while start < count:
        end, half, m = nodes[_END, start], 1, 0
        while 2 * half <= end - start:
            for n in range(start, end - 2 * half + 1, 2 * half):
                if order[n] == m and order[n + half] == m and nodes[SHAPE, n] == nodes[SHAPE, n + half]:
                    order[n], order[n + half] = m + 1, -1
            half, m = 2 * half, m + 1
        start = end
    for m in range(_BLOCKS, shapes.shape[0]):
        for s in range(shapes.shape[1]):
            shapes[m, s] = -1
    for k in range(1, rooms.shape[0], 2):
        for room in range(rooms.shape[1]):
            rooms[k, room] = -1
    for n in range(count - 1, -1, -1):  # so that each goes on top of its list at once
        if order[n] >= 0:
            _push(nodes, shapes, _BLOCKS + order[n], nodes[SHAPE, n], n)
        elif 0 < nodes[FREE, n] < nodes[SIZE, n]:
            _push(nodes, rooms, 2 * nodes[KIND, n] + 1, nodes[FREE, n], n)


@inner
def give(nodes: Ints, shapes: Ints, rooms: Ints, n: int, gpus: int) -> None:
    """*gpus* more are free on node *n*, or fewer if negative; lists know nothing of it."""
    for sign in (-1, 1):
        if nodes[FREE, n] == nodes[SIZE, n]:
            shapes[_EMPTY, nodes[SHAPE, n]] += sign
        elif nodes[FREE, n] > 0:
            rooms[2 * nodes[KIND, n], nodes[FREE, n]] += sign
        if sign < 0:
            nodes[FREE, n] += gpus


@inner
def _pop_nodes(nodes: Ints, shapes: Ints, s: int, order: int, count: int) -> int:
    """The first of *count* nodes at the begin of the smallest block of at least 2^order; -1: none is.

    The rest of the block goes back to the lists in halves.
    """
    m = order
    while _BLOCKS + m < shapes.shape[0] and shapes[_BLOCKS + m, s] < 0:
        m += 1
    if _BLOCKS + m >= shapes.shape[0]:
        return -1
    n = first = _pop(nodes, shapes, _BLOCKS + m, s)
    nodes[_ORDER, n] = -1
    while count < 1 << m:
        m -= 1
        half = 1 << m
        if count <= half:
            nodes[_ORDER, n + half] = m
            _push(nodes, shapes, _BLOCKS + m, s, n + half)
        else:
            n += half
            count -= half
    return first


# -- places without moving anybody


@inner
def one(nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints, need: int, kind: int) -> int:
    """Take *need* GPUs of one node; answers which, or -1."""
    room = need
    while room < rooms.shape[1] and rooms[2 * kind, room] == 0:
        room += 1
    best = -1
    if room >= rooms.shape[1]:
        for s in range(shapes.shape[1]):  # who is awake first, and the smallest of them
            if shapes[_EMPTY, s] == 0 or shapes[_OF_KIND, s] != kind or shapes[_OF_SIZE, s] < need:
                continue
            deeper = 0 if best < 0 else shapes[DEPTH, s] - shapes[DEPTH, best]
            if best < 0 or deeper < 0 or (deeper == 0 and shapes[_OF_SIZE, s] < shapes[_OF_SIZE, best]):
                best = s
        if best < 0:
            return -1
    _make_lists(nodes, shapes, rooms, flags)
    n = _pop(nodes, rooms, 2 * kind + 1, room) if best < 0 else _pop_nodes(nodes, shapes, best, 0, 1)
    give(nodes, shapes, rooms, n, -need)
    if nodes[FREE, n] > 0:
        _push(nodes, rooms, 2 * kind + 1, nodes[FREE, n], n)
    return n


@inner
def next_size(shapes: Ints, kind: int, below: int) -> int:
    """The largest size of nodes of this kind that is less than *below*; 0: there is none."""
    size = 0
    for s in range(shapes.shape[1]):
        if shapes[_OF_KIND, s] == kind and shapes[_OF_SIZE, s] < below:
            size = max(size, shapes[_OF_SIZE, s])
    return size


@inner
def empties(shapes: Ints, kind: int, size: int, depth: int) -> int:
    """How many nodes of this kind and size are empty and sleep no deeper than *depth*."""
    count = 0
    for s in range(shapes.shape[1]):
        if shapes[_OF_KIND, s] == kind and shapes[_OF_SIZE, s] == size and shapes[DEPTH, s] <= depth:
            count += shapes[_EMPTY, s]
    return count


@inner
def enough(shapes: Ints, rooms: Ints, need: int, kind: int) -> int:
    """How deep the nodes may sleep that a job larger than a node takes; -1: there are not enough.

    It takes empty nodes, and one more for what is left.
    """
    for depth in range(3):
        left, spare = need, False
        size = next_size(shapes, kind, rooms.shape[1])
        while size > 0:
            have = empties(shapes, kind, size, depth)
            used = min(left // size, have)
            left -= used * size
            spare = spare or have > used  # and then what is left is less than that node
            size = next_size(shapes, kind, size)
        room = left
        while left > 0 and room < rooms.shape[1] and rooms[2 * kind, room] == 0:
            room += 1
        if left == 0 or spare or room < rooms.shape[1]:
            return depth
    return -1


@inner
def _sit(nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints, seats: Ints, n: int) -> None:
    """Take all of node *n* and note it."""
    seats[0, flags[USED]], seats[1, flags[USED]] = n, nodes[SIZE, n]
    flags[USED] += 1
    give(nodes, shapes, rooms, n, -nodes[SIZE, n])


@inner
def _best_shelf(nodes: Ints, shapes: Ints, kind: int, size: int, count: int, depth: int) -> int:
    """Where to take *count* empty nodes from: the first node of the shelf.

    One that has them all, if possible without waking nodes, and as few more as possible; else the one
    that has most.
    """
    best, best_have, best_wakes = 0, 0, 0
    start = 0
    while start < nodes.shape[1]:
        end, have, wakes = nodes[_END, start], 0, count
        if nodes[KIND, start] == kind and nodes[SIZE, start] == size:
            for n in range(start, end):
                if nodes[FREE, n] == size and shapes[DEPTH, nodes[SHAPE, n]] <= depth:
                    have += 1
                    wakes -= shapes[DEPTH, nodes[SHAPE, n]] < 2
        wakes = max(0, wakes)
        if min(have, count) > best_have or (
            have >= count and (wakes < best_wakes or (wakes == best_wakes and have < best_have))
        ):
            best, best_have, best_wakes = start, have, wakes
        start = end
    return best


@inner
def _whole_nodes(
    nodes: Ints,
    shapes: Ints,
    rooms: Ints,
    flags: Ints,
    seats: Ints,
    kind: int,
    size: int,
    count: int,
    depth: int,
) -> None:
    """Take *count* empty nodes that sleep no deeper than *depth*.

    An aligned group of one rack, else nodes of the fewest racks. Where nodes have to be woken, waking
    few counts for more than where in the rack they are.
    """
    _make_lists(nodes, shapes, rooms, flags)
    order = 0
    while 1 << order < count:
        order += 1
    for s in range(shapes.shape[1] if depth == 0 else 0):
        if _is_shape(shapes, s, kind, 0, size):
            first = _pop_nodes(nodes, shapes, s, order, count)
            if first >= 0:
                for n in range(first, first + count):
                    _sit(nodes, shapes, rooms, flags, seats, n)
                return
    flags[STALE] = 1
    while count > 0:
        start = _best_shelf(nodes, shapes, kind, size, count, depth)
        for d in range(depth + 1):  # who is awake first, and small blocks before large ones
            for m in range(shapes.shape[0] - _BLOCKS):
                for first in range(start, nodes[_END, start]):
                    if nodes[_ORDER, first] == m and shapes[DEPTH, nodes[SHAPE, first]] == d:
                        for n in range(first, first + min(count, 1 << m)):
                            _sit(nodes, shapes, rooms, flags, seats, n)
                            count -= 1


@inner
def many(
    nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints, seats: Ints, need: int, kind: int, depth: int
) -> None:
    """Take *need* GPUs for a job larger than a node, for which there are `enough`."""
    start, left = flags[USED], need
    size = next_size(shapes, kind, rooms.shape[1])
    while size > 0:
        count = min(left // size, empties(shapes, kind, size, depth))
        if count > 0:
            _whole_nodes(nodes, shapes, rooms, flags, seats, kind, size, count, depth)
            left -= count * size
        size = next_size(shapes, kind, size)
    if left > 0:
        seats[0, flags[USED]] = one(nodes, shapes, rooms, flags, left, kind)
        seats[1, flags[USED]] = left
        flags[USED] += 1
    for a in range(start + 1, flags[USED]):  # leases list nodes in ascending order
        b = a
        while b > start and seats[0, b - 1] > seats[0, b]:
            for row in range(2):
                seats[row, b - 1], seats[row, b] = seats[row, b], seats[row, b - 1]
            b -= 1
