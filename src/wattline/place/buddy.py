"""Which GPUs: buddies, blocks of a node or of a rack; others move where fragments are in the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.kernel import B1, BOOL, F1, F2, I1, I2, INT, inner, kernel
from wattline.place.choose import (
    LEADER,
    NO_ROOM,
    OUTRANKED,
    POOL,
    REASON,
    STAYS,
    Backfill,
    check_backfill,
    choose,
)
from wattline.place.write import write
from wattline.table import Bools, Floats, Ints
from wattline.types import HELD, JOB, Models, Placement, Plan, Snapshot

_TRIES = 3  # how often who is chosen by number alone is thought over, when somebody finds no place
_NOBODY = 1 << 62  # needs so much


@dataclass(frozen=True)
class Buddy:
    """All GPUs of a job or none, on one GPU kind; nobody spans nodes who fits on one.

    A job takes the node with the least room that is enough, one that is partly used before one that
    is empty, so that whole nodes, groups of nodes and racks stay empty. A job larger than a node takes
    whole nodes: an aligned group of 2^k nodes of one rack where there is one, else nodes of the fewest
    racks; what is left of it goes to one more node. Who keeps its size and kind keeps its GPUs, with
    two exceptions: where enough GPUs are free but not together, the fewest running GPUs are *moved* to
    other nodes so that a job can start, and where that is not enough a plan that may stop who goes
    later does so. *backfill* says who may overtake a job that finds no place; see
    `wattline.place.choose.choose`. Under `easy` the first of them keeps the emptiest nodes to itself.

    Power-of-two jobs on equal power-of-two nodes always find a place if enough GPUs are free: the buddy
    system (Knowlton, CACM 1965) with migration, as in ElasticFlow (Gu et al., ASPLOS 2023).
    """

    backfill: Backfill = "easy"

    def __post_init__(self) -> None:
        check_backfill(self.backfill)

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Leases for the plan, and a reason for everybody without."""
        nodes = snapshot.nodes
        barred = np.zeros(len(snapshot.queue), dtype=np.int64)
        for _ in range(_TRIES):
            chosen = choose(plan, snapshot, models, self.backfill, barred)
            seat_at, seats, fate, barred, stuck = _settle(
                plan.row,
                plan.gpus,
                plan.keeps,
                plan.keeps and self.backfill == "easy",
                chosen.fate,
                chosen.free,
                chosen.seeking,
                barred,
                snapshot.queue.block,
                snapshot.leases.block,
                nodes.kind.codes,
                len(nodes.kind.names),
                nodes.gpus,
                nodes.rack,
                snapshot.up,
                snapshot.wakes_s,
            )
            if not stuck:
                break
        chosen = chosen._replace(fate=fate, waiting=int(np.count_nonzero(fate[REASON])))
        return write(plan, snapshot, chosen, (seat_at, seats))


# -- what is free
#
# Compiled code is handed a few arrays and no objects, which numba would take minutes to compile: *nodes*;
# *shapes*, kinds of nodes that differ in nothing; *rooms*, by kind and number of free GPUs; *folk*, the
# leaders by row of the queue; *flags*. Lists of nodes are skew heaps, the lowest number on top. All share
# two rows of links, because a node is in one list at most.

_FREE, _SIZE, _KIND, _SHAPE, _END, _ORDER, _LEFT, _RIGHT, _FIRST, _LOCK = range(10)
# _END: the first node behind its shelf, which is a run of equal nodes of one rack
# _ORDER: 2^order empty nodes begin here, aligned in the shelf and part of no larger block; -1: none do
# _FIRST: a leader that is on this node only; -1: nobody is
# _LOCK: 0, or 1 while others are moved, 2 if it is kept for somebody
_OF_KIND, _DEPTH, _OF_SIZE, _EMPTY, _BLOCKS = range(5)
# _DEPTH: 0 awake, 1 booting, 2 off; _EMPTY: how many are; from _BLOCKS on: list of blocks of each order
_NEED, _ON, _AFTER, _BEFORE = range(4)
# _ON: its node; -1: none, or several; _AFTER, _BEFORE: others on that node
_STALE, _USED = range(2)
# _STALE: whether the lists have to be made again; _USED: entries of the seats that are in use


@inner
def _is_shape(shapes: Ints, s: int, kind: int, depth: int, size: int) -> bool:
    return bool(shapes[_OF_KIND, s] == kind and shapes[_DEPTH, s] == depth and shapes[_OF_SIZE, s] == size)


@inner
def _survey(
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
            all_shapes[_OF_KIND, s], all_shapes[_DEPTH, s], all_shapes[_OF_SIZE, s] = kind[n], depth, size[n]
        alike = n + 1 < count and rack[n] == rack[n + 1] and kind[n] == kind[n + 1] and size[n] == size[n + 1]
        nodes[_FREE, n], nodes[_SIZE, n], nodes[_KIND, n] = free[n], size[n], kind[n]
        nodes[_SHAPE, n], nodes[_END, n], nodes[_LOCK, n] = s, nodes[_END, n + 1] if alike else n + 1, 0
        widest = max(widest, size[n])
    shapes = all_shapes[:, :known].copy()
    rooms = np.zeros((2 * kinds, widest + 1), dtype=np.int64)  # of each kind how many nodes, and their list
    for s in range(known):
        shapes[_EMPTY, s] = 0
    for n in range(count):
        if free[n] == size[n]:
            shapes[_EMPTY, nodes[_SHAPE, n]] += 1
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
    if flags[_STALE] == 0:
        return
    flags[_STALE] = 0
    count = nodes.shape[1]
    order = nodes[_ORDER]
    for n in range(count):
        order[n] = 0 if nodes[_FREE, n] == nodes[_SIZE, n] else -1
    start = 0
    while start < count:
        end, half, m = nodes[_END, start], 1, 0
        while 2 * half <= end - start:
            for n in range(start, end - 2 * half + 1, 2 * half):
                if order[n] == m and order[n + half] == m and nodes[_SHAPE, n] == nodes[_SHAPE, n + half]:
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
            _push(nodes, shapes, _BLOCKS + order[n], nodes[_SHAPE, n], n)
        elif 0 < nodes[_FREE, n] < nodes[_SIZE, n]:
            _push(nodes, rooms, 2 * nodes[_KIND, n] + 1, nodes[_FREE, n], n)


@inner
def _give(nodes: Ints, shapes: Ints, rooms: Ints, n: int, gpus: int) -> None:
    """*gpus* more are free on node *n*, or fewer if negative; lists know nothing of it."""
    for sign in (-1, 1):
        if nodes[_FREE, n] == nodes[_SIZE, n]:
            shapes[_EMPTY, nodes[_SHAPE, n]] += sign
        elif nodes[_FREE, n] > 0:
            rooms[2 * nodes[_KIND, n], nodes[_FREE, n]] += sign
        if sign < 0:
            nodes[_FREE, n] += gpus


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
def _one(nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints, need: int, kind: int) -> int:
    """Take *need* GPUs of one node; answers which, or -1."""
    room = need
    while room < rooms.shape[1] and rooms[2 * kind, room] == 0:
        room += 1
    best = -1
    if room >= rooms.shape[1]:
        for s in range(shapes.shape[1]):  # who is awake first, and the smallest of them
            if shapes[_EMPTY, s] == 0 or shapes[_OF_KIND, s] != kind or shapes[_OF_SIZE, s] < need:
                continue
            deeper = 0 if best < 0 else shapes[_DEPTH, s] - shapes[_DEPTH, best]
            if best < 0 or deeper < 0 or (deeper == 0 and shapes[_OF_SIZE, s] < shapes[_OF_SIZE, best]):
                best = s
        if best < 0:
            return -1
    _make_lists(nodes, shapes, rooms, flags)
    n = _pop(nodes, rooms, 2 * kind + 1, room) if best < 0 else _pop_nodes(nodes, shapes, best, 0, 1)
    _give(nodes, shapes, rooms, n, -need)
    if nodes[_FREE, n] > 0:
        _push(nodes, rooms, 2 * kind + 1, nodes[_FREE, n], n)
    return n


@inner
def _next_size(shapes: Ints, kind: int, below: int) -> int:
    """The largest size of nodes of this kind that is less than *below*; 0: there is none."""
    size = 0
    for s in range(shapes.shape[1]):
        if shapes[_OF_KIND, s] == kind and shapes[_OF_SIZE, s] < below:
            size = max(size, shapes[_OF_SIZE, s])
    return size


@inner
def _empties(shapes: Ints, kind: int, size: int, depth: int) -> int:
    """How many nodes of this kind and size are empty and sleep no deeper than *depth*."""
    count = 0
    for s in range(shapes.shape[1]):
        if shapes[_OF_KIND, s] == kind and shapes[_OF_SIZE, s] == size and shapes[_DEPTH, s] <= depth:
            count += shapes[_EMPTY, s]
    return count


@inner
def _enough(shapes: Ints, rooms: Ints, need: int, kind: int) -> int:
    """How deep the nodes may sleep that a job larger than a node takes; -1: there are not enough.

    It takes empty nodes, and one more for what is left.
    """
    for depth in range(3):
        left, spare = need, False
        size = _next_size(shapes, kind, rooms.shape[1])
        while size > 0:
            have = _empties(shapes, kind, size, depth)
            used = min(left // size, have)
            left -= used * size
            spare = spare or have > used  # and then what is left is less than that node
            size = _next_size(shapes, kind, size)
        room = left
        while left > 0 and room < rooms.shape[1] and rooms[2 * kind, room] == 0:
            room += 1
        if left == 0 or spare or room < rooms.shape[1]:
            return depth
    return -1


@inner
def _sit(nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints, seats: Ints, n: int) -> None:
    """Take all of node *n* and note it."""
    seats[0, flags[_USED]], seats[1, flags[_USED]] = n, nodes[_SIZE, n]
    flags[_USED] += 1
    _give(nodes, shapes, rooms, n, -nodes[_SIZE, n])


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
        if nodes[_KIND, start] == kind and nodes[_SIZE, start] == size:
            for n in range(start, end):
                if nodes[_FREE, n] == size and shapes[_DEPTH, nodes[_SHAPE, n]] <= depth:
                    have += 1
                    wakes -= shapes[_DEPTH, nodes[_SHAPE, n]] < 2
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
    flags[_STALE] = 1
    while count > 0:
        start = _best_shelf(nodes, shapes, kind, size, count, depth)
        for d in range(depth + 1):  # who is awake first, and small blocks before large ones
            for m in range(shapes.shape[0] - _BLOCKS):
                for first in range(start, nodes[_END, start]):
                    if nodes[_ORDER, first] == m and shapes[_DEPTH, nodes[_SHAPE, first]] == d:
                        for n in range(first, first + min(count, 1 << m)):
                            _sit(nodes, shapes, rooms, flags, seats, n)
                            count -= 1


@inner
def _many(
    nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints, seats: Ints, need: int, kind: int, depth: int
) -> None:
    """Take *need* GPUs for a job larger than a node, for which there are `_enough`."""
    start, left = flags[_USED], need
    size = _next_size(shapes, kind, rooms.shape[1])
    while size > 0:
        count = min(left // size, _empties(shapes, kind, size, depth))
        if count > 0:
            _whole_nodes(nodes, shapes, rooms, flags, seats, kind, size, count, depth)
            left -= count * size
        size = _next_size(shapes, kind, size)
    if left > 0:
        seats[0, flags[_USED]] = _one(nodes, shapes, rooms, flags, left, kind)
        seats[1, flags[_USED]] = left
        flags[_USED] += 1
    for a in range(start + 1, flags[_USED]):  # leases list nodes in ascending order
        b = a
        while b > start and seats[0, b - 1] > seats[0, b]:
            for row in range(2):
                seats[row, b - 1], seats[row, b] = seats[row, b], seats[row, b - 1]
            b -= 1


# -- places by moving others: leaders that are on one node, with all of their groups


@inner
def _enter(nodes: Ints, folk: Ints, i: int, n: int) -> None:
    folk[_ON, i] = n
    folk[_BEFORE, i], folk[_AFTER, i] = -1, nodes[_FIRST, n]
    if nodes[_FIRST, n] >= 0:
        folk[_BEFORE, nodes[_FIRST, n]] = i
    nodes[_FIRST, n] = i


@inner
def _leave(nodes: Ints, folk: Ints, i: int) -> None:
    if folk[_BEFORE, i] >= 0:
        folk[_AFTER, folk[_BEFORE, i]] = folk[_AFTER, i]
    else:
        nodes[_FIRST, folk[_ON, i]] = folk[_AFTER, i]
    if folk[_AFTER, i] >= 0:
        folk[_BEFORE, folk[_AFTER, i]] = folk[_BEFORE, i]
    folk[_ON, i] = -1


@inner
def _move(nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints, folk: Ints, i: int, to: int) -> None:
    _give(nodes, shapes, rooms, folk[_ON, i], folk[_NEED, i])
    _leave(nodes, folk, i)
    _enter(nodes, folk, i, to)
    _give(nodes, shapes, rooms, to, -folk[_NEED, i])
    flags[_STALE] = 1


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
    need = folk[_NEED]
    count = 0
    i = nodes[_FIRST, n]
    while i >= 0:
        if need[i] < asked:
            who[count] = i
            count += 1
        i = folk[_AFTER, i]
    _sort_down(who, count, need)
    # The largest first of those that are not more than what is missing: exact for powers of two.
    lack = asked - nodes[_FREE, n]
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
        if nodes[_KIND, n] != kind or nodes[_FREE, n] < need or nodes[_LOCK, n] > 0:
            continue
        deeper = 0 if best < 0 else shapes[_DEPTH, nodes[_SHAPE, n]] - shapes[_DEPTH, nodes[_SHAPE, best]]
        more = -1 if best < 0 else nodes[_FREE, n] - nodes[_FREE, best]
        if more < 0 or (more == 0 and deeper < 0):
            best = n
    return best


@inner
def _may_host(nodes: Ints, n: int, asked: int, kind: int, widest: int) -> bool:
    """Whether *asked* GPUs of this node could be made free, and it has at most *widest*."""
    return bool(nodes[_KIND, n] == kind and nodes[_LOCK, n] == 0 and asked <= nodes[_SIZE, n] <= widest)


@inner
def _host(nodes: Ints, folk: Ints, asked: int, kind: int, widest: int, who: Ints) -> int:
    """The node with most room of those whose jobs could make *asked* free; -1: none is."""
    best = -1
    for n in range(nodes.shape[1]):
        if best >= 0 and nodes[_FREE, n] <= nodes[_FREE, best]:
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
        if nodes[_KIND, n] == kind and nodes[_LOCK, n] == 0:
            nodes_with[nodes[_FREE, n]] += 1
    best, best_gpus, best_jobs = -1, asked + rooms.shape[1], 0
    for lack in range(1, asked + 1):  # at least so many GPUs go, and one job
        if lack > best_gpus or (lack == best_gpus and best_jobs == 1):
            break
        if nodes_with[asked - lack] == 0:
            continue
        for n in range(nodes.shape[1]):
            if nodes[_FREE, n] != asked - lack or not _may_host(nodes, n, asked, kind, widest):
                continue
            jobs = _who_goes(nodes, folk, n, asked, who)
            gpus = 0
            for a in range(jobs):
                gpus += folk[_NEED, who[a]]
            better = jobs > 0 and (gpus < best_gpus or (gpus == best_gpus and jobs < best_jobs))
            if better and _all_find_room(nodes_with, nodes[_FREE, n], who, jobs, folk[_NEED], found):
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
def _make_room(
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
    nodes[_LOCK, n] = 1
    for a in range(_who_goes(nodes, folk, n, need, who)):
        to = _tightest(nodes, shapes, folk[_NEED, who[a]], kind)
        _move(nodes, shapes, rooms, flags, folk, who[a], to)
    nodes[_LOCK, n] = 0
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
    """Like `_make_room`, from the node with most room; for who has to go room is made in the same way.

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
        nodes[_LOCK, n] = 1
        while True:
            if at[top] == end[top]:  # all who had to have left this host
                n = hosts[top]
                nodes[_LOCK, n] = 0
                if top == 0:
                    return int(n)
                top -= 1
            else:
                asked = folk[_NEED, line[at[top]]]
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
    flags[_STALE] = 1
    return -1


@inner
def _make_whole_nodes(
    nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints, folk: Ints, need: int, kind: int
) -> int:
    """Move others so that there are `_enough` nodes for a job larger than a node; answers like that."""
    was_nodes, was_shapes, was_rooms, was_folk = nodes.copy(), shapes.copy(), rooms.copy(), folk.copy()
    for n in range(nodes.shape[1]):
        if nodes[_FREE, n] == nodes[_SIZE, n]:
            nodes[_LOCK, n] = 1  # what is empty stays so
    left = need
    size = _next_size(shapes, kind, rooms.shape[1])
    while size > 0:
        have = _empties(shapes, kind, size, 2)
        while have < left // size:
            n = _make_room(nodes, shapes, rooms, flags, folk, size, kind, size)
            if n < 0:
                break
            nodes[_LOCK, n] = 1
            have += 1
        left -= min(left // size, have) * size
        size = _next_size(shapes, kind, size)
    depth = _enough(shapes, rooms, need, kind)
    if depth < 0:
        _make_room(nodes, shapes, rooms, flags, folk, left, kind, rooms.shape[1])
        depth = _enough(shapes, rooms, need, kind)
    if depth < 0:
        _copy_back(nodes, was_nodes)
        _copy_back(shapes, was_shapes)
        _copy_back(rooms, was_rooms)
        _copy_back(folk, was_folk)
        flags[_STALE] = 1
    for n in range(nodes.shape[1]):
        nodes[_LOCK, n] = was_nodes[_LOCK, n]
    return depth


# -- everybody


@inner
def _place(
    nodes: Ints,
    shapes: Ints,
    rooms: Ints,
    flags: Ints,
    folk: Ints,
    seat_at: Ints,
    seats: Ints,
    i: int,
    kind: int,
    spans: bool,
) -> bool:
    """Find a place for leader *i*, if need be by moving others; answers whether there is one."""
    need = folk[_NEED, i]
    if spans:
        depth = _enough(shapes, rooms, need, kind)
        if depth < 0:
            depth = _make_whole_nodes(nodes, shapes, rooms, flags, folk, need, kind)
        if depth < 0:
            return False
        seat_at[0, i] = flags[_USED]
        _many(nodes, shapes, rooms, flags, seats, need, kind, depth)
        seat_at[1, i] = flags[_USED]
        return True
    n = _one(nodes, shapes, rooms, flags, need, kind)
    if n < 0:
        n = _make_room(nodes, shapes, rooms, flags, folk, need, kind, rooms.shape[1])
        if n < 0:
            return False
        _give(nodes, shapes, rooms, n, -need)
    _enter(nodes, folk, i, n)
    return True


@inner
def _make_way(
    nodes: Ints,
    shapes: Ints,
    rooms: Ints,
    flags: Ints,
    folk: Ints,
    fate: Ints,
    leases: Ints,
    lease_at: Ints,
    later: Ints,
    was_on: Ints,
    i: int,
    kind: int,
    spans: bool,
) -> bool:
    """Take the GPUs of those who go *later*, the last first, until there is a place for leader *i*.

    Answers whether there is; who lost its GPUs is marked by -1 in `STAYS`.
    """
    flags[_STALE] = 1
    for a in range(len(later) - 1, -1, -1):
        j = later[a]
        was_on[a] = -1
        if fate[STAYS, j] == 0 or fate[POOL, j] != kind:
            continue
        fits = False
        if folk[_ON, j] >= 0:  # it may have been moved there
            n = was_on[a] = folk[_ON, j]
            _leave(nodes, folk, j)
            _give(nodes, shapes, rooms, n, folk[_NEED, j])
            fits = nodes[_FREE, n] >= folk[_NEED, i]
        else:
            for r in range(lease_at[j], lease_at[j + 1]):
                _give(nodes, shapes, rooms, leases[2, r], leases[3, r])
                fits = fits or nodes[_FREE, leases[2, r]] >= folk[_NEED, i]
        fate[STAYS, j] = -1
        if (spans and _enough(shapes, rooms, folk[_NEED, i], kind) >= 0) or (fits and not spans):
            return True
    return False


@inner
def _come_back(
    nodes: Ints,
    shapes: Ints,
    rooms: Ints,
    flags: Ints,
    folk: Ints,
    fate: Ints,
    leases: Ints,
    lease_at: Ints,
    later: Ints,
    was_on: Ints,
) -> None:
    """Who made way and finds its GPUs still free keeps them after all."""
    flags[_STALE] = 1
    for a in range(len(later)):
        j = later[a]
        if fate[STAYS, j] >= 0:
            continue
        fits = was_on[a] < 0 or nodes[_FREE, was_on[a]] >= folk[_NEED, j]
        for r in range(lease_at[j], lease_at[j + 1]):
            fits = fits and (was_on[a] >= 0 or nodes[_FREE, leases[2, r]] >= leases[3, r])
        fate[STAYS, j] = 1 if fits else 0
        if fits and was_on[a] >= 0:
            _enter(nodes, folk, j, was_on[a])
            _give(nodes, shapes, rooms, was_on[a], -folk[_NEED, j])
        elif fits:
            for r in range(lease_at[j], lease_at[j + 1]):
                _give(nodes, shapes, rooms, leases[2, r], -leases[3, r])


@inner
def _keep_for(
    nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints, need: int, kind: int, biggest: int
) -> None:
    """Keep the emptiest nodes for a job of *need* GPUs: nobody else may go there."""
    flags[_STALE] = 1
    count = -(-need // biggest)
    for free in range(rooms.shape[1] - 1, 0, -1):
        for n in range(nodes.shape[1]):
            fits = nodes[_KIND, n] == kind and nodes[_SIZE, n] >= min(need, biggest)
            if count > 0 and fits and nodes[_FREE, n] == free:
                nodes[_LOCK, n] = 2
                _give(nodes, shapes, rooms, n, -free)
                count -= 1


@kernel(I1, I1, BOOL, BOOL, I2, I1, INT, I1, F2, I2, I1, INT, I1, I1, B1, F1)
def _settle(
    plan_row: Ints,
    plan_gpus: Ints,
    keeps: bool,
    reserves: bool,
    chosen_fate: Ints,
    free: Ints,
    seeking: int,
    was_barred: Ints,
    block: Floats,
    leases: Ints,
    node_kind: Ints,
    kinds: int,
    node_gpus: Ints,
    node_rack: Ints,
    up: Bools,
    wakes_s: Floats,
) -> tuple[Ints, Ints, Ints, Ints, bool]:
    """Places for everybody who was chosen, in the order of the plan; who finds none is *barred*."""
    queued = block.shape[1]
    fate, barred = chosen_fate.copy(), was_barred.copy()
    seat_at = np.zeros((2, queued), dtype=np.int64)
    if seeking == 0:
        return seat_at, np.empty((2, 0), dtype=np.int64), fate, barred, False
    # A node is whole once at most; each job has one place besides.
    seats = np.empty((2, len(free) + 2 * queued), dtype=np.int64)
    leader, pool, stays = fate[LEADER], fate[POOL], fate[STAYS]
    nodes, shapes, rooms = _survey(free, node_kind, kinds, node_gpus, node_rack, wakes_s)
    flags = np.zeros(2, dtype=np.int64)
    flags[_STALE] = 1
    biggest = np.zeros(kinds, dtype=np.int64)
    for n in range(len(free)):
        if up[n] or wakes_s[n] > -np.inf:
            biggest[node_kind[n]] = max(biggest[node_kind[n]], node_gpus[n])
    folk = np.full((4, queued), -1, dtype=np.int64)
    for p in range(len(plan_row)):
        folk[_NEED, plan_row[p]] = plan_gpus[p]
    lease_at = np.zeros(queued + 1, dtype=np.int64)
    comes_first = np.zeros(queued, dtype=np.bool_)
    for i in range(queued):
        r = lease_at[i]
        while r < leases.shape[1] and leases[0, r] == block[JOB, i]:
            r += 1
        lease_at[i + 1] = r
        if stays[i] and r == lease_at[i] + 1:
            _enter(nodes, folk, i, leases[2, lease_at[i]])
        if r > lease_at[i] and block[HELD, i] == folk[_NEED, i]:
            comes_first[i] = (was_barred[i] >> node_kind[leases[2, lease_at[i]]]) & 1 == 0

    stuck = headed = False
    # By kind and whether it spans nodes: the smallest that found no place, and for which nobody could
    # make way. Room only shrinks, so that who needs more need not try.
    no_place = np.full((kinds, 2), _NOBODY, dtype=np.int64)
    no_way = np.full((kinds, 2), _NOBODY, dtype=np.int64)
    # The same order in which they were chosen: where nobody is to be stopped, who runs comes first. So
    # whoever finds no place finds none because of those before it, who will be there next time, too.
    turns = 2 if keeps else 1
    for turn in range(turns):
        for p in range(len(plan_row)):
            i = plan_row[p]
            kind = pool[i]
            if leader[i] != i or stays[i]:
                continue
            if kind < 0:
                if turn < turns - 1 or fate[REASON, i] != NO_ROOM:
                    continue
            elif keeps and comes_first[i] != (turn == 0):
                continue
            else:
                need = plan_gpus[p]
                spans = need > biggest[kind]
                done = False
                if need < no_place[kind, int(spans)]:
                    done = _place(nodes, shapes, rooms, flags, folk, seat_at, seats, i, kind, spans)
                    if not done:
                        no_place[kind, int(spans)] = need
                        for q in range(p + 1, len(plan_row)):  # next time these need not be chosen
                            waits = block[HELD, plan_row[q]] == 0
                            if waits and plan_gpus[q] >= need and (plan_gpus[q] > biggest[kind]) == spans:
                                barred[plan_row[q]] |= 1 << kind
                if not done and not keeps and need < no_way[kind, int(spans)]:
                    later = plan_row[p + 1 :]
                    was_on = np.empty(len(later), dtype=np.int64)
                    way = _make_way(
                        nodes,
                        shapes,
                        rooms,
                        flags,
                        folk,
                        fate,
                        leases,
                        lease_at,
                        later,
                        was_on,
                        i,
                        kind,
                        spans,
                    )
                    if way:
                        done = _place(nodes, shapes, rooms, flags, folk, seat_at, seats, i, kind, spans)
                        no_place[kind, 0] = no_place[kind, 1] = _NOBODY  # others have left
                    else:
                        no_way[kind, int(spans)] = need
                    _come_back(nodes, shapes, rooms, flags, folk, fate, leases, lease_at, later, was_on)
                if done:
                    barred[i] &= ~(1 << kind)
                    continue
                stuck = True
                barred[i] |= 1 << kind
                pool[i], fate[REASON, i] = -1, OUTRANKED if headed else NO_ROOM
            if reserves and not headed:
                for k in range(kinds):
                    if (barred[i] >> k) & 1:
                        _keep_for(nodes, shapes, rooms, flags, plan_gpus[p], k, biggest[k])
                        break
            headed = True
    for p in range(len(plan_row)):
        i = plan_row[p]
        if leader[i] != i:
            pool[i], fate[REASON, i] = pool[leader[i]], fate[REASON, leader[i]]

    for i in range(queued):
        if leader[i] == i and folk[_ON, i] >= 0:
            if stays[i] and folk[_ON, i] == leases[2, lease_at[i]]:
                continue
            stays[i] = 0
            seat_at[0, i], seat_at[1, i] = flags[_USED], flags[_USED] + 1
            seats[0, flags[_USED]], seats[1, flags[_USED]] = folk[_ON, i], folk[_NEED, i]
            flags[_USED] += 1
    return seat_at, seats, fate, barred, stuck
