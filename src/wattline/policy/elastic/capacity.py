"""GPUs that elastic policies allocate among jobs, and the plan of an allocation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

import numpy as np

from wattline.core.leases import LEASE_JOB, LEASE_NODE
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import (
    QUEUE_ACCEPTED_KINDS,
    QUEUE_HELD_GPUS,
    QUEUE_JOB,
)
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.jit import B1, F1, F2, I1, I2, INT, inner, kernel
from wattline.models.configurations import Configurations, build_configurations, with_fixed_batch
from wattline.policy.held_kinds import find_held_kinds

_SAME = 1e-6  # relative difference of speeds and energies that are equal


@dataclass(frozen=True, eq=False, slots=True)
class Capacity:
    """Configurations and GPUs that are open to the jobs of a queue, one entry per row of the queue.

    Each job is served from one kind of GPU: from that on which it runs, or else from the kind on which it is
    fastest with an equal share of the GPUs; of equals from the one that draws least. Its configurations are
    row *job_class* of *configs*; its sizes are numbered from 0.
    """

    configs: Configurations
    job_class: Ints
    pool: Ints  # kind of GPU; -1: there is none for it now, or it is held back
    room: Ints  # GPUs of each kind
    held: Ints  # GPUs that it holds now; 0: it waits
    outranked: Bools  # entries of the plan for which jobs of a smaller precedence leave no GPUs


def build_capacity(
    snapshot: Snapshot,
    models: Models,
    plan: Plan | None,
    *,
    batches: bool,
    by_precedence: bool = False,
    first: Floats | None = None,
) -> Capacity:
    """Return what can be allocated; of an earlier *plan* only the choice of jobs counts.

    With *batches* jobs that allow it may be trained with other batch sizes than they requested. With
    *by_precedence* and a plan that has one, only as many jobs count as fit on their fewest GPUs: those of the
    smallest precedence, of equals those with the smallest *first* (by row of the queue) or the earliest.
    """
    jobs, nodes, queue = snapshot.jobs, snapshot.nodes, snapshot.queue
    configs = build_configurations(models, jobs if batches else with_fixed_batch(jobs), nodes)
    planned, outranked = np.ones(len(queue), dtype=np.bool_), np.zeros(len(queue), dtype=np.bool_)
    if plan is not None:
        planned[:] = False
        planned[plan.row] = True
    if by_precedence and plan is not None and plan.precedence is not None:
        tie = np.arange(len(queue), dtype=np.float64) if first is None else first
        outranked = _find_outranked(
            plan.row[np.lexsort((tie[plan.row], plan.precedence))],
            queue.block,
            snapshot.leases.block,
            nodes.kind.codes,
            _count_room(
                nodes.kind.codes, nodes.gpus, snapshot.up, snapshot.boot_done_s, len(nodes.kind.names)
            ),
            configs.job_class,
            configs.gpus,
        )
        planned &= ~outranked
    rows, room = _choose_pools(
        queue.block,
        snapshot.leases.block,
        nodes.kind.codes,
        nodes.gpus,
        snapshot.up,
        snapshot.boot_done_s,
        len(nodes.kind.names),
        planned,
        configs.job_class,
        configs.gpus,
        configs.size_count,
        np.ascontiguousarray(configs.speed[:, :, -1]),
        np.ascontiguousarray(configs.watts[:, :, -1]),
    )
    pool, job_class, held = rows
    return Capacity(configs, job_class, pool, room, held, outranked)


@inner
def _sum_room(node_kind: Ints, node_gpus: Ints, up: Bools, boot_done_s: Floats, kinds: int) -> Ints:
    """Return the GPUs of each kind on nodes that are up or can be switched on."""
    room = np.zeros(kinds, dtype=np.int64)
    for n in range(len(node_kind)):
        if up[n] or boot_done_s[n] > -np.inf:
            room[node_kind[n]] += node_gpus[n]
    return room


@kernel(I1, I1, B1, F1, INT)
def _count_room(node_kind: Ints, node_gpus: Ints, up: Bools, boot_done_s: Floats, kinds: int) -> Ints:
    return _sum_room(node_kind, node_gpus, up, boot_done_s, kinds)


@kernel(I1, F2, I2, I1, I1, I2, I2)
def _find_outranked(
    order: Ints, block: Floats, leases: Ints, node_kind: Ints, room: Ints, job_classes: Ints, gpus: Ints
) -> Bools:
    """Return the rows of the queue for which the rows before them in *order* leave too few GPUs.

    Each takes its fewest GPUs, on the kind that it holds or the accepted kind with most GPUs left. Rows for
    which no kind is large enough are not outranked.
    """
    held_kind = find_held_kinds(block, leases, node_kind)
    free = room.copy()
    outranked = np.zeros(block.shape[1], dtype=np.bool_)
    for i in order:
        job, accepts = int(block[QUEUE_JOB, i]), int(block[QUEUE_ACCEPTED_KINDS, i])
        best = -1
        possible = False
        for k in range(len(room)):
            need = gpus[job_classes[job, k], 0]
            may = (accepts >> k) & 1 == 1 and (held_kind[i] < 0 or held_kind[i] == k)
            possible = possible or (may and need <= room[k])
            if may and need <= free[k] and (best < 0 or free[k] > free[best]):
                best = k
        if best >= 0:
            free[best] -= gpus[job_classes[job, best], 0]
        else:
            outranked[i] = possible
    return outranked


@inner
def _judge_share(
    each: float, c: int, sizes: Ints, gpus: Ints, speed: Floats, watts: Floats
) -> tuple[float, float]:
    """Return the largest speed of a class with at most *each* GPUs, and the energy of a unit of work."""
    if gpus[c, 0] > each:
        part = each / gpus[c, 0]  # it has to wait for the rest of its GPUs
        return part * speed[c, 0], watts[c, 0] / speed[c, 0]
    best = 0
    for s in range(1, sizes[c]):
        if gpus[c, s] <= each and speed[c, s] > speed[c, best]:
            best = s
    return speed[c, best], watts[c, best] / speed[c, best]


@kernel(F2, I2, I1, I1, B1, F1, INT, B1, I2, I2, I1, F2, F2)
def _choose_pools(
    block: Floats,
    leases: Ints,
    node_kind: Ints,
    node_gpus: Ints,
    up: Bools,
    boot_done_s: Floats,
    kinds: int,
    planned: Bools,
    job_classes: Ints,
    gpus: Ints,
    sizes: Ints,
    speed: Floats,
    watts: Floats,
) -> tuple[Ints, Ints]:
    """Return for every row of the queue the kind of GPU that serves it, its class there and its GPUs now.

    The GPUs of each kind follow.
    """
    queued = block.shape[1]
    room = _sum_room(node_kind, node_gpus, up, boot_done_s, kinds)
    crowd = np.zeros(kinds, dtype=np.int64)
    rows = np.empty((3, queued), dtype=np.int64)
    pool, job_class, held = rows[0], rows[1], rows[2]
    pool[:] = -1
    i = 0
    for r in range(leases.shape[1]):
        while block[QUEUE_JOB, i] < leases[LEASE_JOB, r]:
            i += 1
        if pool[i] < 0 and planned[i]:
            pool[i] = node_kind[leases[LEASE_NODE, r]]
            crowd[pool[i]] += 1
    # Jobs that accept one kind only come first, so that others see how many need it.
    for only in (True, False):
        for i in range(queued):
            job, accepts = int(block[QUEUE_JOB, i]), int(block[QUEUE_ACCEPTED_KINDS, i])
            if pool[i] >= 0 or not planned[i] or (accepts & (accepts - 1) == 0) != only:
                continue
            best, best_j, most = -1.0, 0.0, 0.0
            for k in range(kinds):
                c = job_classes[job, k]
                if (accepts >> k) & 1 == 0 or gpus[c, 0] > room[k]:
                    continue
                each = room[k] / (crowd[k] + 1.0)
                fast, energy = _judge_share(each, c, sizes, gpus, speed, watts)
                same = abs(fast - best) <= _SAME * best
                less = energy < best_j * (1 - _SAME)
                if fast > best * (1 + _SAME) or (same and (less or (energy <= best_j and each > most))):
                    best, best_j, most = fast, energy, each
                    pool[i] = k
            if pool[i] >= 0:
                crowd[pool[i]] += 1
    for i in range(queued):
        job, accepts = int(block[QUEUE_JOB, i]), int(block[QUEUE_ACCEPTED_KINDS, i])
        first = 0
        for k in range(kinds - 1, -1, -1):
            if (accepts >> k) & 1:
                first = k
        job_class[i] = job_classes[job, pool[i] if pool[i] >= 0 else first]
        held[i] = int(block[QUEUE_HELD_GPUS, i])
    return rows, room


def allocate_greedily(capacity: Capacity, first: Ints, value: Floats, value_of_none: Floats) -> Ints:
    """Return the size of every row (-1: none) if the next GPUs always go where they add most value.

    The rows of *first* get their least size in this order, as far as the GPUs go. After that each step is the
    one with the largest gain of *value* (by row and size) per GPU; *value_of_none* is the value without GPUs,
    -inf for rows that must not start any more.
    """
    configs = capacity.configs
    return _allocate_greedily(
        first,
        value,
        value_of_none,
        capacity.job_class,
        capacity.pool,
        capacity.room,
        configs.size_count,
        configs.gpus,
    )


@inner
def _find_best_step(
    i: int, size: int, c: int, room: int, sizes: Ints, gpus: Ints, value: Floats, value_of_none: Floats
) -> tuple[float, int]:
    """Return the gain per GPU of a row's best step within *room*, and the size it leads to (-1: none).

    A step may skip sizes: what does not pay at twice the GPUs may at four times as many.
    """
    now = value[i, size] if size >= 0 else value_of_none[i]
    has = gpus[c, size] if size >= 0 else 0
    best, to = 0.0, -1
    if now == -np.inf:
        return best, to
    for s in range(size + 1, sizes[c]):
        more = gpus[c, s] - has
        if more > room:
            break
        gain = (value[i, s] - now) / more
        if gain > best:
            best, to = gain, s
    return best, to


@kernel(I1, F2, F1, I1, I1, I1, I1, I2)
def _allocate_greedily(
    first: Ints,
    value: Floats,
    value_of_none: Floats,
    job_class: Ints,
    pool: Ints,
    room: Ints,
    sizes: Ints,
    gpus: Ints,
) -> Ints:
    size = np.full(len(job_class), -1, dtype=np.int64)
    free = room.copy()
    for i in first:
        if pool[i] >= 0 and gpus[job_class[i], 0] <= free[pool[i]]:
            size[i] = 0
            free[pool[i]] -= gpus[job_class[i], 0]
    heap = [(0.0, 0)]
    heap.pop()
    for i in range(len(job_class)):
        if pool[i] >= 0:
            gain, to = _find_best_step(
                i, size[i], job_class[i], free[pool[i]], sizes, gpus, value, value_of_none
            )
            if to >= 0:
                heap.append((-gain, i))
    heapify(heap)
    while len(heap) > 0:
        queued_gain, i = heap[0]
        c, k = job_class[i], pool[i]
        gain, to = _find_best_step(i, size[i], c, free[k], sizes, gpus, value, value_of_none)
        if to >= 0 and -gain <= queued_gain:  # else there is less room than when the step was queued
            free[k] -= gpus[c, to] - (gpus[c, size[i]] if size[i] >= 0 else 0)
            size[i] = to
            gain, to = _find_best_step(i, to, c, free[k], sizes, gpus, value, value_of_none)
        if to >= 0:
            heapreplace(heap, (-gain, i))
        else:
            heappop(heap)
    return size


def plan_from_sizes(
    snapshot: Snapshot,
    capacity: Capacity,
    size: Ints,
    plan: Plan | None,
    *,
    next_decision_s: float = math.inf,
) -> Plan:
    """Return the plan in which every row has this *size*; rows without come last, at their least size.

    Jobs that keep their size come first, then the largest: small jobs fill the gaps. The kinds come one after
    the other, so that a placer that fills them in this order finds room for all.
    """
    configs, job_class = capacity.configs, capacity.job_class
    rows = np.arange(len(job_class), dtype=np.int64) if plan is None else np.sort(plan.row)
    row, gpus = _order_rows(
        rows, size, job_class, capacity.pool, capacity.held, len(capacity.room), configs.gpus
    )
    batch = None
    if configs.has_batches:
        batch = configs.batch[job_class[row], np.maximum(size[row], 0), -1]
    cap_w, reason, needs_meter = None, None, False
    if plan is not None:
        next_decision_s = min(next_decision_s, plan.next_decision_s)
        reason, needs_meter = plan.reason, plan.needs_meter
        if plan.cap_w is not None:
            by_row = np.zeros(len(job_class), dtype=np.int64)
            by_row[plan.row] = plan.cap_w
            cap_w = by_row[row]
    return Plan(
        row=row,
        gpus=gpus,
        group=row,
        next_decision_s=next_decision_s,
        cap_w=cap_w,
        batch=batch,
        reason=reason,
        needs_meter=needs_meter,
    )


@kernel(I1, I1, I1, I1, I1, INT, I2)
def _order_rows(
    rows: Ints, size: Ints, job_class: Ints, pool: Ints, held: Ints, kinds: int, gpus: Ints
) -> Ints:
    """Return *rows* of the queue in the order of `plan_from_sizes`, and the GPUs of each."""
    count = len(rows)
    most = 1
    for i in range(len(job_class)):
        most = max(most, gpus[job_class[i], max(size[i], 0)] + 1)
    key = np.empty(count, dtype=np.int64)
    for p in range(count):
        i = rows[p]
        granted = gpus[job_class[i], max(size[i], 0)]
        key[p] = kinds * most
        if size[i] >= 0:
            key[p] = pool[i] * most + (0 if granted == held[i] else most - granted)
    order = np.argsort(key, kind="mergesort")
    ordered = np.empty((2, count), dtype=np.int64)
    for p in range(count):
        i = rows[order[p]]
        ordered[0, p] = i
        ordered[1, p] = gpus[job_class[i], max(size[i], 0)]
    return ordered
