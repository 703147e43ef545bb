"""Which GPUs: buddies, blocks of a node or of a rack; others move where fragments are in the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.queue import HELD, JOB
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.jit import B1, BOOL, F1, F2, I1, I2, INT, inner, kernel
from wattline.placement.buddy.free_blocks import (
    FREE,
    KIND,
    LOCK,
    NEED,
    ON,
    SIZE,
    STALE,
    USED,
    enough,
    give,
    many,
    one,
    survey,
)
from wattline.placement.buddy.migration import enter, leave, make_room, make_whole_nodes
from wattline.placement.lease_builder import write
from wattline.placement.selection import (
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
    `wattline.placement.selection.choose`. Under `easy` the first of them keeps the emptiest nodes to itself.

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
    need = folk[NEED, i]
    if spans:
        depth = enough(shapes, rooms, need, kind)
        if depth < 0:
            depth = make_whole_nodes(nodes, shapes, rooms, flags, folk, need, kind)
        if depth < 0:
            return False
        seat_at[0, i] = flags[USED]
        many(nodes, shapes, rooms, flags, seats, need, kind, depth)
        seat_at[1, i] = flags[USED]
        return True
    n = one(nodes, shapes, rooms, flags, need, kind)
    if n < 0:
        n = make_room(nodes, shapes, rooms, flags, folk, need, kind, rooms.shape[1])
        if n < 0:
            return False
        give(nodes, shapes, rooms, n, -need)
    enter(nodes, folk, i, n)
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
    flags[STALE] = 1
    for a in range(len(later) - 1, -1, -1):
        j = later[a]
        was_on[a] = -1
        if fate[STAYS, j] == 0 or fate[POOL, j] != kind:
            continue
        fits = False
        if folk[ON, j] >= 0:  # it may have been moved there
            n = was_on[a] = folk[ON, j]
            leave(nodes, folk, j)
            give(nodes, shapes, rooms, n, folk[NEED, j])
            fits = nodes[FREE, n] >= folk[NEED, i]
        else:
            for r in range(lease_at[j], lease_at[j + 1]):
                give(nodes, shapes, rooms, leases[2, r], leases[3, r])
                fits = fits or nodes[FREE, leases[2, r]] >= folk[NEED, i]
        fate[STAYS, j] = -1
        if (spans and enough(shapes, rooms, folk[NEED, i], kind) >= 0) or (fits and not spans):
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
    flags[STALE] = 1
    for a in range(len(later)):
        j = later[a]
        if fate[STAYS, j] >= 0:
            continue
        fits = was_on[a] < 0 or nodes[FREE, was_on[a]] >= folk[NEED, j]
        for r in range(lease_at[j], lease_at[j + 1]):
            fits = fits and (was_on[a] >= 0 or nodes[FREE, leases[2, r]] >= leases[3, r])
        fate[STAYS, j] = 1 if fits else 0
        if fits and was_on[a] >= 0:
            enter(nodes, folk, j, was_on[a])
            give(nodes, shapes, rooms, was_on[a], -folk[NEED, j])
        elif fits:
            for r in range(lease_at[j], lease_at[j + 1]):
                give(nodes, shapes, rooms, leases[2, r], -leases[3, r])


@inner
def _keep_for(
    nodes: Ints, shapes: Ints, rooms: Ints, flags: Ints, need: int, kind: int, biggest: int
) -> None:
    """Keep the emptiest nodes for a job of *need* GPUs: nobody else may go there."""
    flags[STALE] = 1
    count = -(-need // biggest)
    for free in range(rooms.shape[1] - 1, 0, -1):
        for n in range(nodes.shape[1]):
            fits = nodes[KIND, n] == kind and nodes[SIZE, n] >= min(need, biggest)
            if count > 0 and fits and nodes[FREE, n] == free:
                nodes[LOCK, n] = 2
                give(nodes, shapes, rooms, n, -free)
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
    nodes, shapes, rooms = survey(free, node_kind, kinds, node_gpus, node_rack, wakes_s)
    flags = np.zeros(2, dtype=np.int64)
    flags[STALE] = 1
    biggest = np.zeros(kinds, dtype=np.int64)
    for n in range(len(free)):
        if up[n] or wakes_s[n] > -np.inf:
            biggest[node_kind[n]] = max(biggest[node_kind[n]], node_gpus[n])
    folk = np.full((4, queued), -1, dtype=np.int64)
    for p in range(len(plan_row)):
        folk[NEED, plan_row[p]] = plan_gpus[p]
    lease_at = np.zeros(queued + 1, dtype=np.int64)
    comes_first = np.zeros(queued, dtype=np.bool_)
    for i in range(queued):
        r = lease_at[i]
        while r < leases.shape[1] and leases[0, r] == block[JOB, i]:
            r += 1
        lease_at[i + 1] = r
        if stays[i] and r == lease_at[i] + 1:
            enter(nodes, folk, i, leases[2, lease_at[i]])
        if r > lease_at[i] and block[HELD, i] == folk[NEED, i]:
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
        if leader[i] == i and folk[ON, i] >= 0:
            if stays[i] and folk[ON, i] == leases[2, lease_at[i]]:
                continue
            stays[i] = 0
            seat_at[0, i], seat_at[1, i] = flags[USED], flags[USED] + 1
            seats[0, flags[USED]], seats[1, flags[USED]] = folk[ON, i], folk[NEED, i]
            flags[USED] += 1
    return seat_at, seats, fate, barred, stuck
