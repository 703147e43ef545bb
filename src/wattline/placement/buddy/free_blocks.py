"""Free GPUs in buddy blocks of whole nodes, and nodes for jobs without moving others.

Kernels share a record of arrays, `BuddyState`; objects with methods would take numba minutes to compile.
Nodes with free GPUs are kept in skew heaps, the lowest number on top. All heaps share two rows of links,
because a node is in at most one of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.table import Ints
from wattline.jit import inner
from wattline.placement.kernel_arrays import ENTRY_GPUS, ENTRY_NODE, NodeColumns, sort_by_node

# Rows of `BuddyState.nodes`.
NODE_FREE, NODE_SIZE, NODE_KIND, NODE_SHAPE, _RUN_END, _ORDER, _LEFT, _RIGHT, NODE_FIRST_JOB, NODE_LOCK = (
    range(10)
)
# _RUN_END: the first node after its run, which is a sequence of equal nodes of one rack
# _ORDER: 2^order empty nodes begin here, aligned in the run and part of no larger block; -1: none do
# NODE_FIRST_JOB: a leader that is on this node only; -1: none is
# NODE_LOCK: 0, or 1 while others are moved, 2 if it is reserved

# Rows of `BuddyState.shapes`.
_SHAPE_KIND, SHAPE_POWER, _SHAPE_SIZE, _EMPTY_NODES, _HEAPS = range(5)
# _EMPTY_NODES: number of empty nodes; from _HEAPS on: the heap of blocks of each order

# Values of SHAPE_POWER, in the order of preference.
STATE_ON, STATE_BOOTING, STATE_OFF = range(3)

# Rows of `BuddyState.leaders`.
LEADER_NEED, LEADER_NODE, LEADER_NEXT, LEADER_PREVIOUS = range(4)
# LEADER_NEED: GPUs; LEADER_NODE: its node; -1: none, or several
# LEADER_NEXT, LEADER_PREVIOUS: others on that node

# Entries of `BuddyState.flags`.
HEAPS_STALE, ENTRIES_USED = range(2)


class BuddyState(NamedTuple):
    """Nodes, and the leaders that are on one node only, while jobs are placed."""

    nodes: Ints  # a column per node
    shapes: Ints  # a column per shape: nodes of a shape have the same kind, size and power state
    partial: Ints  # partly used nodes by free GPUs: rows 2k and 2k + 1 are their number and heap, for kind k
    flags: Ints
    leaders: Ints  # a column per row of the queue


@inner
def _is_shape(shapes: Ints, s: int, kind: int, power: int, size: int) -> bool:
    """Return whether shape *s* has this kind, power state and size."""
    return bool(
        shapes[_SHAPE_KIND, s] == kind and shapes[SHAPE_POWER, s] == power and shapes[_SHAPE_SIZE, s] == size
    )


@inner
def build_state(free: Ints, columns: NodeColumns, kinds: int, queued: int) -> BuddyState:
    """Return the state of nodes with these *free* GPUs; heaps are built when they are first needed."""
    kind, size, rack, _, boot_done_s = columns
    count = len(free)
    orders = 1
    while 1 << orders <= count:
        orders += 1
    nodes = np.full((10, count), -1, dtype=np.int64)
    all_shapes = np.full((_HEAPS + orders, count), -1, dtype=np.int64)
    widest = known = s = 0
    for n in range(count - 1, -1, -1):
        power = (
            STATE_ON
            if boot_done_s[n] == -np.inf
            else STATE_OFF
            if boot_done_s[n] == np.inf
            else STATE_BOOTING
        )
        if known == 0 or not _is_shape(all_shapes, s, kind[n], power, size[n]):  # most neighbours are equal
            s = 0
            while s < known and not _is_shape(all_shapes, s, kind[n], power, size[n]):
                s += 1
            known = max(known, s + 1)
            all_shapes[_SHAPE_KIND, s], all_shapes[SHAPE_POWER, s] = kind[n], power
            all_shapes[_SHAPE_SIZE, s] = size[n]
        same_run = (
            n + 1 < count and rack[n] == rack[n + 1] and kind[n] == kind[n + 1] and size[n] == size[n + 1]
        )
        nodes[NODE_FREE, n], nodes[NODE_SIZE, n], nodes[NODE_KIND, n] = free[n], size[n], kind[n]
        nodes[NODE_SHAPE, n], nodes[_RUN_END, n] = s, nodes[_RUN_END, n + 1] if same_run else n + 1
        nodes[NODE_LOCK, n] = 0
        widest = max(widest, size[n])
    shapes = all_shapes[:, :known].copy()
    partial = np.zeros((2 * kinds, widest + 1), dtype=np.int64)
    for s in range(known):
        shapes[_EMPTY_NODES, s] = 0
    for n in range(count):
        if free[n] == size[n]:
            shapes[_EMPTY_NODES, nodes[NODE_SHAPE, n]] += 1
        elif free[n] > 0:
            partial[2 * kind[n], free[n]] += 1
    flags = np.zeros(2, dtype=np.int64)
    flags[HEAPS_STALE] = 1
    return BuddyState(nodes, shapes, partial, flags, np.full((4, queued), -1, dtype=np.int64))


@inner
def _merge_heaps(nodes: Ints, a: int, b: int) -> int:
    """Merge two skew heaps; return the top of the result."""
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
def _push(nodes: Ints, heaps: Ints, row: int, column: int, n: int) -> None:
    nodes[_LEFT, n] = nodes[_RIGHT, n] = -1
    heaps[row, column] = _merge_heaps(nodes, heaps[row, column], n)


@inner
def _pop(nodes: Ints, heaps: Ints, row: int, column: int) -> int:
    top = heaps[row, column]
    heaps[row, column] = _merge_heaps(nodes, nodes[_LEFT, top], nodes[_RIGHT, top])
    return int(top)


@inner
def _rebuild_heaps(state: BuddyState) -> None:
    """Build the heaps of free nodes unless they are up to date."""
    nodes, shapes, partial, flags, _ = state
    if flags[HEAPS_STALE] == 0:
        return
    flags[HEAPS_STALE] = 0
    count = nodes.shape[1]
    order = nodes[_ORDER]
    for n in range(count):
        order[n] = 0 if nodes[NODE_FREE, n] == nodes[NODE_SIZE, n] else -1
    start = 0
    while start < count:
        end, half, m = nodes[_RUN_END, start], 1, 0
        while 2 * half <= end - start:
            for n in range(start, end - 2 * half + 1, 2 * half):
                if (
                    order[n] == m
                    and order[n + half] == m
                    and nodes[NODE_SHAPE, n] == nodes[NODE_SHAPE, n + half]
                ):
                    order[n], order[n + half] = m + 1, -1
            half, m = 2 * half, m + 1
        start = end
    for m in range(_HEAPS, shapes.shape[0]):
        for s in range(shapes.shape[1]):
            shapes[m, s] = -1
    for k in range(1, partial.shape[0], 2):
        for room in range(partial.shape[1]):
            partial[k, room] = -1
    for n in range(count - 1, -1, -1):  # descending, so that each goes on top of its heap at once
        if order[n] >= 0:
            _push(nodes, shapes, _HEAPS + order[n], nodes[NODE_SHAPE, n], n)
        elif 0 < nodes[NODE_FREE, n] < nodes[NODE_SIZE, n]:
            _push(nodes, partial, 2 * nodes[NODE_KIND, n] + 1, nodes[NODE_FREE, n], n)


@inner
def add_free_gpus(state: BuddyState, n: int, gpus: int) -> None:
    """Count *gpus* more, or fewer if negative, as free on node *n*; heaps are not updated."""
    nodes, shapes, partial, _, _ = state
    for sign in (-1, 1):
        if nodes[NODE_FREE, n] == nodes[NODE_SIZE, n]:
            shapes[_EMPTY_NODES, nodes[NODE_SHAPE, n]] += sign
        elif nodes[NODE_FREE, n] > 0:
            partial[2 * nodes[NODE_KIND, n], nodes[NODE_FREE, n]] += sign
        if sign < 0:
            nodes[NODE_FREE, n] += gpus


@inner
def _pop_nodes(nodes: Ints, shapes: Ints, s: int, order: int, count: int) -> int:
    """Return the first of *count* nodes at the start of the smallest block of at least 2^order; -1: none is.

    The rest of the block goes back to the heaps in halves.
    """
    m = order
    while _HEAPS + m < shapes.shape[0] and shapes[_HEAPS + m, s] < 0:
        m += 1
    if _HEAPS + m >= shapes.shape[0]:
        return -1
    n = first = _pop(nodes, shapes, _HEAPS + m, s)
    nodes[_ORDER, n] = -1
    while count < 1 << m:
        m -= 1
        half = 1 << m
        if count <= half:
            nodes[_ORDER, n + half] = m
            _push(nodes, shapes, _HEAPS + m, s, n + half)
        else:
            n += half
            count -= half
    return first


# -- nodes for jobs, without moving others


@inner
def take_on_one_node(state: BuddyState, need: int, kind: int) -> int:
    """Take *need* GPUs of one node; return the node, or -1 if there is none."""
    nodes, shapes, partial, _, _ = state
    room = need
    while room < partial.shape[1] and partial[2 * kind, room] == 0:
        room += 1
    best = -1
    if room >= partial.shape[1]:
        for s in range(shapes.shape[1]):  # nodes that are on first, and the smallest of them
            if (
                shapes[_EMPTY_NODES, s] == 0
                or shapes[_SHAPE_KIND, s] != kind
                or shapes[_SHAPE_SIZE, s] < need
            ):
                continue
            later = 0 if best < 0 else shapes[SHAPE_POWER, s] - shapes[SHAPE_POWER, best]
            if best < 0 or later < 0 or (later == 0 and shapes[_SHAPE_SIZE, s] < shapes[_SHAPE_SIZE, best]):
                best = s
        if best < 0:
            return -1
    _rebuild_heaps(state)
    n = _pop(nodes, partial, 2 * kind + 1, room) if best < 0 else _pop_nodes(nodes, shapes, best, 0, 1)
    add_free_gpus(state, n, -need)
    if nodes[NODE_FREE, n] > 0:
        _push(nodes, partial, 2 * kind + 1, nodes[NODE_FREE, n], n)
    return n


@inner
def next_smaller_size(shapes: Ints, kind: int, below: int) -> int:
    """Return the largest size of nodes of this kind that is less than *below*; 0: there is none."""
    size = 0
    for s in range(shapes.shape[1]):
        if shapes[_SHAPE_KIND, s] == kind and shapes[_SHAPE_SIZE, s] < below:
            size = max(size, shapes[_SHAPE_SIZE, s])
    return size


@inner
def count_empty_nodes(shapes: Ints, kind: int, size: int, power: int) -> int:
    """Return the number of empty nodes of this kind and size with a power state of at most *power*."""
    count = 0
    for s in range(shapes.shape[1]):
        if (
            shapes[_SHAPE_KIND, s] == kind
            and shapes[_SHAPE_SIZE, s] == size
            and shapes[SHAPE_POWER, s] <= power
        ):
            count += shapes[_EMPTY_NODES, s]
    return count


@inner
def find_power_for_whole_nodes(state: BuddyState, need: int, kind: int) -> int:
    """Return the lowest power state up to which there are enough nodes for a job larger than a node.

    The job takes empty nodes, and one more for what is left. -1: there are not enough.
    """
    _, shapes, partial, _, _ = state
    for power in range(STATE_OFF + 1):
        left, spare = need, False
        size = next_smaller_size(shapes, kind, partial.shape[1])
        while size > 0:
            have = count_empty_nodes(shapes, kind, size, power)
            used = min(left // size, have)
            left -= used * size
            spare = spare or have > used  # and then what is left is less than that node
            size = next_smaller_size(shapes, kind, size)
        room = left
        while left > 0 and room < partial.shape[1] and partial[2 * kind, room] == 0:
            room += 1
        if left == 0 or spare or room < partial.shape[1]:
            return power
    return -1


@inner
def _take_node(state: BuddyState, entries: Ints, n: int) -> None:
    """Take all of node *n* and write its entry."""
    size, at = state.nodes[NODE_SIZE, n], state.flags[ENTRIES_USED]
    entries[ENTRY_NODE, at], entries[ENTRY_GPUS, at] = n, size
    state.flags[ENTRIES_USED] += 1
    add_free_gpus(state, n, -size)


@inner
def _find_best_run(nodes: Ints, shapes: Ints, kind: int, size: int, count: int, power: int) -> int:
    """Return the first node of the run from which to take *count* empty nodes.

    That is one that has them all, if possible without booting nodes, and as few more as possible; else the
    one that has most.
    """
    best, best_have, best_boots = 0, 0, 0
    start = 0
    while start < nodes.shape[1]:
        end, have, boots = nodes[_RUN_END, start], 0, count
        if nodes[NODE_KIND, start] == kind and nodes[NODE_SIZE, start] == size:
            for n in range(start, end):
                if nodes[NODE_FREE, n] == size and shapes[SHAPE_POWER, nodes[NODE_SHAPE, n]] <= power:
                    have += 1
                    boots -= shapes[SHAPE_POWER, nodes[NODE_SHAPE, n]] < STATE_OFF
        boots = max(0, boots)
        if min(have, count) > best_have or (
            have >= count and (boots < best_boots or (boots == best_boots and have < best_have))
        ):
            best, best_have, best_boots = start, have, boots
        start = end
    return best


@inner
def _take_empty_nodes(state: BuddyState, entries: Ints, kind: int, size: int, count: int, power: int) -> None:
    """Take *count* empty nodes with a power state of at most *power*.

    They are an aligned group of one rack, else nodes of the fewest racks. Where nodes have to boot, booting
    few counts for more than their position in the rack.
    """
    nodes, shapes, _, flags, _ = state
    _rebuild_heaps(state)
    order = 0
    while 1 << order < count:
        order += 1
    for s in range(shapes.shape[1] if power == STATE_ON else 0):
        if _is_shape(shapes, s, kind, STATE_ON, size):
            first = _pop_nodes(nodes, shapes, s, order, count)
            if first >= 0:
                for n in range(first, first + count):
                    _take_node(state, entries, n)
                return
    flags[HEAPS_STALE] = 1
    while count > 0:
        start = _find_best_run(nodes, shapes, kind, size, count, power)
        for state_power in range(power + 1):  # nodes that are on first, and small blocks before large ones
            for m in range(shapes.shape[0] - _HEAPS):
                for first in range(start, nodes[_RUN_END, start]):
                    if (
                        nodes[_ORDER, first] == m
                        and shapes[SHAPE_POWER, nodes[NODE_SHAPE, first]] == state_power
                    ):
                        for n in range(first, first + min(count, 1 << m)):
                            _take_node(state, entries, n)
                            count -= 1


@inner
def take_whole_nodes(state: BuddyState, entries: Ints, need: int, kind: int, power: int) -> None:
    """Take *need* GPUs for a job larger than a node; *power* is that of `find_power_for_whole_nodes`."""
    flags = state.flags
    start, left = flags[ENTRIES_USED], need
    widest = state.partial.shape[1]
    size = next_smaller_size(state.shapes, kind, widest)
    while size > 0:
        count = min(left // size, count_empty_nodes(state.shapes, kind, size, power))
        if count > 0:
            _take_empty_nodes(state, entries, kind, size, count, power)
            left -= count * size
        size = next_smaller_size(state.shapes, kind, size)
    if left > 0:
        entries[ENTRY_NODE, flags[ENTRIES_USED]] = take_on_one_node(state, left, kind)
        entries[ENTRY_GPUS, flags[ENTRIES_USED]] = left
        flags[ENTRIES_USED] += 1
    sort_by_node(entries, start, flags[ENTRIES_USED])
