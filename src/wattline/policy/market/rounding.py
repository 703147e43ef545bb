"""Decision now: whole GPUs for whole jobs (gangs), one step after the other by gain per GPU.

The worth of a configuration per second is

    U = θ · s · keep − h − ν · watts,    keep = H / (H + restart) where the job would restart, else 1,

θ the value of a unit of the job's work (see `prices`), H the rest of the job or an hour, the shorter of both.
A running job that is stopped must restart later, so having no GPUs is worth −θ · s · (1 − keep) to it.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import F1, F3, FLOAT, I1, I2, inner, kernel, record

NEVER = -1e300
"""Worth of a configuration that is not open to a job."""


class NowRows(NamedTuple):
    """Rows of the queue as the decision needs them."""

    job_class: Ints  # on kind 0; on kind k it is k times the number of classes more
    accepts: Ints  # bit mask of kinds; 0: none is open to it
    work_s: Floats
    work_value: Floats  # θ
    held: Ints  # GPUs; 0: it waits
    held_kind: Ints  # -1: it waits
    restart_s: Floats  # what a restart costs, work that is lost included; 0: it has not run yet
    pinned: Ints  # 1: it keeps what it has
    most_gpus: Ints  # that it may have now
    watt_price: Floats  # of a watt for a second
    watts_factor: Floats  # measured over predicted watts
    pause: Floats  # h, the price of any second of running


class SizeCosts(NamedTuple):
    """Configurations by class (of all kinds), size and cap, and the watts of their nodes."""

    size_count: Ints
    gpus: Ints
    speed: Floats
    watts: Floats
    static_w: Floats


NOW_ROWS = record(NowRows, I1, I1, F1, F1, I1, I1, F1, I1, I1, F1, F1, F1)
SIZE_COSTS = record(SizeCosts, I1, I2, F3, F3, F1)


@kernel(NOW_ROWS, SIZE_COSTS, I1, FLOAT)
def compute_worth(
    rows: NowRows,
    sizes: SizeCosts,
    room: Ints,
    horizon_s: float,
) -> tuple[Floats, Ints, Floats]:
    """Return the worth of each row by kind and size at its best cap, that cap, and the worth of no GPUs."""
    kinds, count = len(room), len(rows.work_s)
    classes, most, caps = len(sizes.size_count) // kinds, sizes.gpus.shape[1], sizes.speed.shape[2]
    worth = np.full((count, kinds, most), NEVER)
    cap = np.zeros((count, kinds, most), dtype=np.int64)
    none = np.zeros(count)
    for i in range(count):
        restart_s, held = rows.restart_s[i], rows.held[i]
        for k in range(kinds):
            if (rows.accepts[i] >> k) & 1 == 0:
                continue
            c = rows.job_class[i] + k * classes
            for s in range(sizes.size_count[c]):
                n = sizes.gpus[c, s]
                same = n == held and rows.held_kind[i] == k
                if n > min(room[k], rows.most_gpus[i]) or (rows.pinned[i] == 1 and not same):
                    continue
                for q in range(caps):
                    speed = sizes.speed[c, s, q]
                    if not (speed > 0 and speed < np.inf):
                        continue
                    counted_s = min(max(rows.work_s[i] / speed, 1.0), horizon_s)
                    keep = counted_s / (counted_s + restart_s)
                    now = rows.work_value[i] * speed
                    if not same:
                        now *= keep
                    drawn_w = rows.watts_factor[i] * sizes.watts[c, s, q] + n * sizes.static_w[c]
                    now -= rows.pause[i] + rows.watt_price[i] * drawn_w
                    if now > worth[i, k, s] or (now == worth[i, k, s] and now > NEVER):
                        worth[i, k, s], cap[i, k, s] = now, q
                    if same and q == caps - 1:
                        none[i] = -rows.work_value[i] * speed * (1.0 - keep)
    return worth, cap, none


@inner
def _find_best_step(
    i: int,
    kind: int,
    size: int,
    now: float,
    free: Ints,
    rows: NowRows,
    sizes: SizeCosts,
    worth: Floats,
    order: Ints,
) -> tuple[float, int, int]:
    """Return the gain per GPU of the best step of row *i*, and the kind and size it leads to (-1: none).

    A row without GPUs looks at its kinds in their *order* and takes the first with enough GPUs. A step may
    skip sizes, so that gains fall from step to step.
    """
    classes = len(sizes.size_count) // len(free)
    for p in range(len(free)):
        k = kind if kind >= 0 else order[p]
        if k < 0:
            break
        c = rows.job_class[i] + k * classes
        has = sizes.gpus[c, size] if size >= 0 else 0
        best, to = 0.0, -1
        for s in range(size + 1, sizes.size_count[c]):
            more = sizes.gpus[c, s] - has
            if more > free[k]:
                break
            gain = (worth[k, s] - now) / more
            if gain > best:
                best, to = gain, s
        if to >= 0:
            return best, k, to
        if kind >= 0:
            break
    return 0.0, -1, -1


@inner
def _order_kinds(worth: Floats, c: int, sizes: SizeCosts, gpu_price: Floats, order: Ints) -> None:
    """Write the kinds that are open to a row by falling worth at these prices; -1: no more."""
    kinds = len(gpu_price)
    classes = len(sizes.size_count) // kinds
    net = np.full(kinds, NEVER)
    for k in range(kinds):
        for s in range(sizes.size_count[c + k * classes]):
            if worth[k, s] > NEVER:
                net[k] = max(net[k], worth[k, s] - gpu_price[k] * sizes.gpus[c + k * classes, s])
    order[:] = -1
    for p in range(kinds):
        best = -1
        for k in range(kinds):
            if net[k] > NEVER and (best < 0 or net[k] > net[best]):
                best = k
        if best < 0:
            break
        order[p] = best
        net[best] = NEVER


@kernel(I1, NOW_ROWS, SIZE_COSTS, I1, F3, F1, F1)
def allocate(
    first: Ints, rows: NowRows, sizes: SizeCosts, room: Ints, worth: Floats, none: Floats, gpu_price: Floats
) -> tuple[Ints, Ints, float]:
    """Return the kind and the size of each row (-1: none), and the worth of all rows.

    The rows of *first* get their smallest size in this order, as far as the GPUs go. After that the step with
    the largest gain per GPU is taken as long as there is one.
    """
    count, kinds = len(rows.work_s), len(room)
    classes = len(sizes.size_count) // kinds
    kind, size = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    order = np.full((count, kinds), -1, dtype=np.int64)
    free = room.copy()
    for i in range(count):
        _order_kinds(worth[i], rows.job_class[i], sizes, gpu_price, order[i])
    for i in first:
        for p in range(kinds):
            k = order[i, p]
            if k < 0 or kind[i] >= 0:
                break
            c = rows.job_class[i] + k * classes
            for s in range(sizes.size_count[c]):
                if worth[i, k, s] > NEVER and sizes.gpus[c, s] <= free[k]:
                    kind[i], size[i] = k, s
                    free[k] -= sizes.gpus[c, s]
                    break
    heap = [(0.0, 0)]
    heap.pop()
    for i in range(count):
        now = none[i] if size[i] < 0 else worth[i, kind[i], size[i]]
        gain, _, to = _find_best_step(i, kind[i], size[i], now, free, rows, sizes, worth[i], order[i])
        if to >= 0:
            heap.append((-gain, i))
    heapify(heap)
    while len(heap) > 0:
        queued, i = heap[0]
        now = none[i] if size[i] < 0 else worth[i, kind[i], size[i]]
        gain, k, to = _find_best_step(i, kind[i], size[i], now, free, rows, sizes, worth[i], order[i])
        if to >= 0 and -gain <= queued:  # else there is less room than when the step was queued
            c = rows.job_class[i] + k * classes
            free[k] -= sizes.gpus[c, to] - (sizes.gpus[c, size[i]] if size[i] >= 0 else 0)
            kind[i], size[i] = k, to
            gain, _, to = _find_best_step(i, k, to, worth[i, k, to], free, rows, sizes, worth[i], order[i])
        if to >= 0:
            heapreplace(heap, (-gain, i))
        else:
            heappop(heap)
    total = 0.0
    for i in range(count):
        total += none[i] if size[i] < 0 else worth[i, kind[i], size[i]]
    return kind, size, total
