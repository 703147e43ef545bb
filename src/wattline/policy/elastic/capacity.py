"""What there is to share out among jobs of any size, and the plan that comes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import ACCEPTS, JOB
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.jit import B1, F1, F2, I1, I2, inner, kernel
from wattline.models.configurations import Menu, menu, with_own_batch


@dataclass(frozen=True, eq=False, slots=True)
class Offer:
    """What the jobs of a queue may be given, one entry per row of the queue.

    Each is served from one kind of GPU: from that on which it runs, or else from the one with most GPUs
    per job. A job's ways to run are row *sort* of the *menu*; its sizes are counted from 0.
    """

    menu: Menu
    sort: Ints
    pool: Ints  # kind of GPU; -1: there is none for it now, or it is held back
    room: Ints  # GPUs of each kind
    held: Ints  # GPUs it holds now; 0: it waits


def offer(snapshot: Snapshot, models: Models, plan: Plan | None, *, batches: bool) -> Offer:
    """What can be shared out; of an earlier *plan* only who is in it counts.

    *batches*: jobs that allow it may be trained with other batch sizes than they asked for.
    """
    jobs, nodes, queue = snapshot.jobs, snapshot.nodes, snapshot.queue
    ways = menu(models, jobs if batches else with_own_batch(jobs), nodes)
    takes = np.ones(len(queue), dtype=np.bool_)
    if plan is not None:
        takes[:] = False
        takes[plan.row] = True
    room = np.bincount(nodes.kind.codes, nodes.gpus * snapshot.usable, len(nodes.kind.names)).astype(np.int64)
    pool, sort = _pools(
        queue.block, snapshot.leases.block, nodes.kind.codes, takes, room, ways.sort, ways.gpus
    )
    return Offer(ways, sort, pool, room, queue.held.astype(np.int64))


@kernel(F2, I2, I1, B1, I1, I2, I2)
def _pools(
    block: Floats, leases: Ints, node_kind: Ints, takes: Bools, room: Ints, sorts: Ints, gpus: Ints
) -> tuple[Ints, Ints]:
    """For every row of the queue the kind of GPU it is served from, and its sort on that kind."""
    queued = block.shape[1]
    kinds = len(room)
    crowd = np.zeros(kinds, dtype=np.int64)
    pool = np.full(queued, -1, dtype=np.int64)
    sort = np.empty(queued, dtype=np.int64)
    i = 0
    for r in range(leases.shape[1]):
        while block[JOB, i] < leases[0, r]:
            i += 1
        if pool[i] < 0 and takes[i]:
            pool[i] = node_kind[leases[2, r]]
            crowd[pool[i]] += 1
    for i in range(queued):
        job, accepts = int(block[JOB, i]), int(block[ACCEPTS, i])
        best, first = -1.0, 0
        for k in range(kinds - 1, -1, -1):
            if (accepts >> k) & 1:
                first = k
        if pool[i] < 0 and takes[i]:
            for k in range(kinds):
                each = room[k] / (crowd[k] + 1.0)
                if (accepts >> k) & 1 and gpus[sorts[job, k], 0] <= room[k] and each > best:
                    best = each
                    pool[i] = k
            if pool[i] >= 0:
                crowd[pool[i]] += 1
        sort[i] = sorts[job, pool[i] if pool[i] >= 0 else first]
    return pool, sort


def pace(snapshot: Snapshot, offers: Offer, left_s: Floats, rescale_s: float, horizon_s: float) -> Floats:
    """What a restart leaves of the speed of each row at each size: H / (H + *rescale_s*) where a job that has
    run would get another size than it has. H is *left_s*, what is left of the job, or *horizon_s* if shorter.
    """
    lasts_s = np.clip(left_s, 1.0, horizon_s)
    restarts = offers.menu.gpus[offers.sort] != offers.held[:, None]
    restarts &= ~np.isnan(snapshot.queue.first_s)[:, None]
    return np.where(restarts, lasts_s / (lasts_s + rescale_s), 1.0)


def grow(offers: Offer, first: Ints, worth: Floats, nothing: Floats) -> Ints:
    """The size of every row (-1: none), where the next GPUs go to whom they are worth most.

    The rows of *first* are given their least size in this order, as far as the GPUs go. After that each
    step is the one with the largest gain of *worth* (by row and size) per GPU; *nothing* is what it is
    worth to have no GPUs, -inf for whom that is settled.
    """
    ways = offers.menu
    return _grow(first, worth, nothing, offers.sort, offers.pool, offers.room, ways.sizes, ways.gpus)


@inner
def _best_step(
    i: int, level: int, c: int, room: int, sizes: Ints, gpus: Ints, worth: Floats, nothing: Floats
) -> tuple[float, int]:
    """The gain per GPU of a row's best step within *room*, and the size it leads to (-1: none).

    A step may skip sizes: what does not pay at twice the GPUs may at four times as many.
    """
    now = worth[i, level] if level >= 0 else nothing[i]
    has = gpus[c, level] if level >= 0 else 0
    best, to = 0.0, -1
    if now == -np.inf:
        return best, to
    for s in range(level + 1, sizes[c]):
        more = gpus[c, s] - has
        if more > room:
            break
        gain = (worth[i, s] - now) / more
        if gain > best:
            best, to = gain, s
    return best, to


@kernel(I1, F2, F1, I1, I1, I1, I1, I2)
def _grow(
    first: Ints, worth: Floats, nothing: Floats, sort: Ints, pool: Ints, room: Ints, sizes: Ints, gpus: Ints
) -> Ints:
    level = np.full(len(sort), -1, dtype=np.int64)
    free = room.copy()
    for i in first:
        if pool[i] >= 0 and gpus[sort[i], 0] <= free[pool[i]]:
            level[i] = 0
            free[pool[i]] -= gpus[sort[i], 0]
    heap = [(0.0, 0)]
    heap.pop()
    for i in range(len(sort)):
        if pool[i] >= 0:
            gain, to = _best_step(i, level[i], sort[i], free[pool[i]], sizes, gpus, worth, nothing)
            if to >= 0:
                heap.append((-gain, i))
    heapify(heap)
    while len(heap) > 0:
        offered, i = heap[0]
        c, k = sort[i], pool[i]
        gain, to = _best_step(i, level[i], c, free[k], sizes, gpus, worth, nothing)
        if to >= 0 and -gain <= offered:  # else there is less room than when it was offered
            free[k] -= gpus[c, to] - (gpus[c, level[i]] if level[i] >= 0 else 0)
            level[i] = to
            gain, to = _best_step(i, to, c, free[k], sizes, gpus, worth, nothing)
        if to >= 0:
            heapreplace(heap, (-gain, i))
        else:
            heappop(heap)
    return level


def granted(
    snapshot: Snapshot, offers: Offer, level: Ints, plan: Plan | None, *, tick_s: float = math.inf
) -> Plan:
    """The plan in which everybody has the size of *level*; those without come last, at their least size.

    Who keeps its size is seated first, then the largest: small jobs fill the gaps. The kinds come one
    after the other, so that a placer that fills them in this order finds room for all.
    """
    ways, sort = offers.menu, offers.sort
    size = ways.gpus[sort, np.maximum(level, 0)]
    rows = np.arange(len(sort), dtype=np.int64) if plan is None else np.sort(plan.row)
    most = int(size.max(initial=0)) + 1
    turn = offers.pool * most + np.where(size == offers.held, 0, most - size)
    turn[level < 0] = len(offers.room) * most
    row = rows[np.argsort(turn[rows], kind="stable")]
    batch = ways.batch[sort[row], np.maximum(level[row], 0), -1] if ways.batch.any() else None
    cap_w, reason, meters = None, None, False
    if plan is not None:
        tick_s, reason, meters = min(tick_s, plan.tick_s), plan.reason, plan.meters
        if plan.cap_w is not None:
            by_row = np.zeros(len(sort), dtype=np.int64)
            by_row[plan.row] = plan.cap_w
            cap_w = by_row[row]
    return Plan(
        row=row,
        gpus=size[row],
        group=row,
        tick_s=tick_s,
        cap_w=cap_w,
        batch=batch,
        reason=reason,
        meters=meters,
    )
