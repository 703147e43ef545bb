"""Response of one job to prices: when it runs, and in which column, if its work must be done.

In bucket t a job of weight w has the column of its class that maximises

    (μ − f(t)) · s / W − y,    y = h + ν(t) · watts + λ(t) · n,    f(t) = w · t + late · max(0, t − due)

where μ is the value of its work being done, W its work, s the speed of the column and n its GPUs. For each
class and bucket the columns are a convex hull in the plane of s and y, so the best one is found by its slope.
More value means more work done, so μ is found by bisection.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import F1, I1, inner, record
from wattline.policy.market.columns import Columns

_STEPS = 60  # of the bisection at most


class MarketRows(NamedTuple):
    """Jobs as the market needs them, by row of the queue; times count from now."""

    work_s: Floats  # remaining, at speed 1
    weight: Floats  # price of a second until the job ends
    late: Floats  # price of a second after *due_s*
    due_s: Floats  # inf: never
    group: Ints  # index in `ClassTable`; -1: there are no GPUs for it


class ClassTable(NamedTuple):
    """Job classes of the queue."""

    code: Ints  # class in `Columns`
    accepts: Ints  # bit mask of the kinds of GPU
    least_j: Floats  # price of the energy of a unit of work in the cheapest column
    pause: Floats  # h, the price of any second of running
    extra: Floats  # price of a joule now besides that of its bucket, because of budgets


class Buckets(NamedTuple):
    """Time buckets: their ends from now on, and prices of a joule in each."""

    begin_s: Floats
    end_s: Floats
    energy_price: Floats
    budget: Floats  # price because of budgets, as a part of that now


class Hulls(NamedTuple):
    """Convex hulls by class and bucket; point 0 is waiting, at speed and price 0."""

    points: Ints  # 2-D: how many
    speed: Floats  # 3-D
    price: Floats
    slope: Floats  # 3-D: price per speed between a point and the next one
    column: Ints  # 3-D


ROWS = record(MarketRows, F1, F1, F1, F1, I1)
CLASSES = record(ClassTable, I1, I1, F1, F1, F1)
BUCKETS = record(Buckets, F1, F1, F1, F1)


@inner
def allocate_hulls(classes: ClassTable, buckets: Buckets, widest: int) -> Hulls:
    """Return hulls of at most *widest* columns each, not yet built."""
    shape = (len(classes.code), len(buckets.begin_s), widest + 1)
    return Hulls(
        np.zeros(shape[:2], dtype=np.int64),
        np.zeros(shape),
        np.zeros(shape),
        np.zeros(shape),
        np.zeros(shape, dtype=np.int64),
    )


@inner
def build_hulls(
    hulls: Hulls,
    columns: Columns,
    classes: ClassTable,
    buckets: Buckets,
    room: Ints,
    gpu_price: Floats,
) -> None:
    """Write the hulls at these prices of GPUs (by kind and bucket).

    Energy that the work needs in any case is left out of the price: it is no reason to wait.
    """
    for g in range(len(classes.code)):
        first, last = columns.start[classes.code[g]], columns.start[classes.code[g] + 1]
        for t in range(len(buckets.begin_s)):
            speed, price, column = hulls.speed[g, t], hulls.price[g, t], hulls.column[g, t]
            speed[0], price[0], column[0] = 0.0, 0.0, -1
            top = 1
            for c in range(first, last):
                k = columns.kind[c]
                if (classes.accepts[g] >> k) & 1 == 0 or columns.gpus[c] > room[k]:
                    continue
                x = columns.speed[c]
                per_j = buckets.energy_price[t] + classes.extra[g] * buckets.budget[t]
                y = per_j * columns.watts[c] - classes.least_j[g] * x
                y = classes.pause[g] + max(y, 0.0) + gpu_price[k, t] * columns.gpus[c]
                if top > 1 and x <= speed[top - 1] and y >= price[top - 1]:
                    continue
                while top > 1 and y <= price[top - 1]:
                    top -= 1
                while top >= 2 and (y - price[top - 1]) * (speed[top - 1] - speed[top - 2]) <= (
                    price[top - 1] - price[top - 2]
                ) * (x - speed[top - 1]):
                    top -= 1
                speed[top], price[top], column[top] = x, y, c
                top += 1
            hulls.points[g, t] = top
            for p in range(top - 1):
                hulls.slope[g, t, p] = (price[p + 1] - price[p]) / (speed[p + 1] - speed[p])


@inner
def find_point(worth: float, count: int, slope: Floats, near: int) -> int:
    """Return the point of a hull with the largest *worth* · speed − price; it is not far from *near*."""
    at = min(near, count - 1)
    while at < count - 1 and worth > slope[at]:
        at += 1
    while at > 0 and worth <= slope[at - 1]:
        at -= 1
    return int(at)


@inner
def compute_time_price(j: int, at_s: float, rows: MarketRows) -> float:
    """Return f(t), the price of work of row *j* that is done at *at_s*."""
    return float(rows.weight[j] * at_s + rows.late[j] * max(0.0, at_s - rows.due_s[j]))


@inner
def evaluate(j: int, value: float, rows: MarketRows, buckets: Buckets, hulls: Hulls) -> tuple[float, float]:
    """Return the part of its work that row *j* does at this *value*, and its loss (to be maximised)."""
    g, work_s = rows.group[j], rows.work_s[j]
    weight, late, due_s = rows.weight[j], rows.late[j], rows.due_s[j]
    points, speeds, prices, slopes = hulls.points[g], hulls.speed[g], hulls.price[g], hulls.slope[g]
    done, loss, at, per_s = 0.0, value, 0, 1.0 / work_s
    for t in range(len(buckets.begin_s)):
        begin_s, end_s = buckets.begin_s[t], buckets.end_s[t]
        middle_s = 0.5 * (begin_s + end_s)
        worth = value - (weight * middle_s + late * max(0.0, middle_s - due_s))
        if worth <= 0:
            break
        worth *= per_s
        at = find_point(worth, points[t], slopes[t], at)
        if at > 0:
            speed = speeds[t, at]
            done += (end_s - begin_s) * speed
            loss -= (end_s - begin_s) * (worth * speed - prices[t, at])
    return done * per_s, loss


@inner
def find_value(
    j: int,
    start: float,
    spread: float,
    precision: float,
    rows: MarketRows,
    buckets: Buckets,
    hulls: Hulls,
) -> tuple[float, float, float, float]:
    """Return two values of row *j*'s work between which it gets done, the share of the second, the loss.

    The search starts at *start*, looks a factor of *spread* around it first, and ends when the two are within
    *precision* of each other.
    """
    low = high = start
    done_low = done_high = loss_low = loss_high = 0.0
    done, loss = evaluate(j, start, rows, buckets, hulls)
    if done >= 1:
        done_high, loss_high = done, loss
        for _ in range(_STEPS):
            low = high / spread
            done_low, loss_low = evaluate(j, low, rows, buckets, hulls)
            if done_low < 1 or low < 1e-9:
                break
            high, done_high, loss_high = low, done_low, loss_low
            spread *= spread
    else:
        done_low, loss_low = done, loss
        for _ in range(_STEPS):
            high = low * spread
            done_high, loss_high = evaluate(j, high, rows, buckets, hulls)
            if done_high >= 1:
                break
            low, done_low, loss_low = high, done_high, loss_high
            spread *= spread
    for _ in range(_STEPS):
        if high - low <= precision * high:
            break
        middle = 0.5 * (low + high)
        done, loss = evaluate(j, middle, rows, buckets, hulls)
        if done >= 1:
            high, done_high, loss_high = middle, done, loss
        else:
            low, done_low, loss_low = middle, done, loss
    share = 1.0
    if done_high - done_low > 1e-12:
        share = min(1.0, max(0.0, (1.0 - done_low) / (done_high - done_low)))
    return low, high, share, max(loss_low, loss_high)


@inner
def add_use(
    j: int,
    value: float,
    share: float,
    rows: MarketRows,
    buckets: Buckets,
    hulls: Hulls,
    columns: Columns,
    used: Floats,
) -> float:
    """Add the GPU-seconds of row *j* by kind and bucket to *used*, return its joules; both times *share*."""
    g, work_s, joules, at = rows.group[j], rows.work_s[j], 0.0, 0
    for t in range(len(buckets.begin_s)):
        long_s = buckets.end_s[t] - buckets.begin_s[t]
        worth = value - compute_time_price(j, 0.5 * (buckets.begin_s[t] + buckets.end_s[t]), rows)
        if worth <= 0:
            break
        at = find_point(worth / work_s, hulls.points[g, t], hulls.slope[g, t], at)
        if at > 0:
            c = hulls.column[g, t, at]
            used[columns.kind[c], t] += share * long_s * columns.gpus[c]
            joules += share * long_s * columns.watts[c]
    return joules
