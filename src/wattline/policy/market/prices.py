"""Prices of GPUs over time, at which the jobs at hand want no more of them than there are.

The programme, over jobs j, time buckets t and columns c (x is time):

    min Σ x_jct [ f_j(t) · s_c / W_j + h + ν(t) · watts_c ]
    s.t. Σ s_c x_jct = W_j;   Σ_c x_jct ≤ Δ_t;   Σ n_c x_jct ≤ N_k Δ_t    (price λ_kt)

Prices start from the closed form for one fast machine, λ(t) = weight unfinished at t / N, and move by
multiplicative steps with the demand that they cause (see `price_steps`); the mean of the later half of them
counts. Where all jobs fit beside each other as they like best,
GPUs are free, and one step is enough. Nothing is remembered between decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import BOOL, F1, F2, I1, INT, inner, kernel
from wattline.policy.market.columns import COLUMNS, Columns
from wattline.policy.market.price_steps import move_prices
from wattline.policy.market.response import (
    BUCKETS,
    CLASSES,
    ROWS,
    Buckets,
    ClassTable,
    MarketRows,
    add_use,
    allocate_hulls,
    build_hulls,
    compute_time_price,
    find_point,
    find_value,
)
from wattline.policy.market.watt_profile import FLAT, WattProfile

BUCKET_COUNT = 20
_LEAST_ITERATIONS, _MOST_ITERATIONS = 10, 40
_JOB_ITERATIONS = 10_000  # of all jobs: prices of few jobs are computed to the end
_FEW_ITERATIONS = 4
_FREE = 1e-12  # price of a GPU that no other job wants
_PRECISION, _COARSE = 2e-3, 2e-2  # relative, of the value of work: in the last two steps, and before
_WIDE, _NEAR, _CLOSE = 1.6, 1.1, 1.05  # factor around the last value of work: at first, then, and later
_CLOSE_STEP = 3  # from which values are close to the last ones
_FIRST_BUCKET_S = 30.0  # about a restart: plans are not finer than that
_TAIL = 8.0  # the last bucket ends so many times later: work that does not fit must fit somewhere


@dataclass(frozen=True, eq=False, slots=True)
class Prices:
    """Prices that clear the market, and what jobs do at them."""

    gpu: Floats  # by kind and bucket: of a GPU-second
    work_value: Floats  # by row: θ, the value of a second of its work done now
    value: Floats  # by row: μ, the value of all of its work
    used: Floats  # by kind and bucket: GPU-seconds
    energy_j: float  # of all jobs until they end
    bound: float  # lower bound of the programme
    buckets: Buckets
    find_starts: Callable[[], Floats]  # by row: when it first runs at these prices, see `_find_starts`


def clear(
    rows: MarketRows,
    columns: Columns,
    code: Ints,
    accepts: Ints,
    room: Ints,
    pause: Floats,
    extra: Floats,
    price_at: Callable[[Floats], Floats],
    profile: WattProfile = FLAT,
    start: Prices | None = None,
) -> Prices:
    """Return prices for *rows* on *room* GPUs of each kind.

    *code*, *accepts*, *pause* and *extra* are as in `ClassTable`. *price_at* returns the price of a joule so
    many seconds from now; *extra* follows the *profile*. With the prices of a similar problem to *start*
    from, a few steps are enough.
    """
    gpu_s = _find_least(columns, columns.gpus, code, accepts, room)
    work = rows.work_s * gpu_s[np.maximum(rows.group, 0)] * (rows.group >= 0)
    total = float(max(room.sum(), 1))
    begin_s, end_s = _divide_time(work, rows.work_s[rows.group >= 0], total, profile.end_s)
    middle_s = 0.5 * (begin_s + end_s)
    buckets = Buckets(begin_s, end_s, price_at(middle_s), profile.at(middle_s))
    classes = _build_classes(columns, code, accepts, room, pause, extra, buckets)
    if start is None:
        gpu, value = _guess(rows, work, total, buckets, len(room))
    else:
        gpu, value = start.gpu, start.value
    iterations = count_iterations(len(rows.work_s)) if start is None else _FEW_ITERATIONS
    widest = int(np.diff(columns.start)[code].max(initial=0))
    first = -1 if start is None and _can_all_run(rows, columns, classes, room) else 0
    gpu, work_value, value, used, totals = _clear(
        rows, columns, classes, buckets, room, gpu, value, start is not None, first, iterations, widest
    )
    starts = partial(_find_starts, rows, columns, classes, buckets, room, gpu, value, widest)
    return Prices(gpu, work_value, value, used, float(totals[0]), float(totals[1]), buckets, starts)


def compute_costs(
    prices: Prices,
    rows: MarketRows,
    columns: Columns,
    code: Ints,
    accepts: Ints,
    room: Ints,
    pause: Floats,
    extra: Floats,
    guess: Floats,
) -> Floats:
    """Return what the work of each of *rows* costs at these *prices*, time included; inf: it has no column.

    *code*, *accepts*, *pause* and *extra* are as in `ClassTable`; *guess* is the value of each row's work.
    """
    buckets = prices.buckets
    classes = _build_classes(columns, code, accepts, room, pause, extra, buckets)
    widest = int(np.diff(columns.start)[code].max(initial=0))
    return _compute_costs(rows, columns, classes, buckets, room, prices.gpu, guess, widest)


def _build_classes(
    columns: Columns, code: Ints, accepts: Ints, room: Ints, pause: Floats, extra: Floats, buckets: Buckets
) -> ClassTable:
    """Return the classes with the price of their energy in the cheapest column at the cheapest time."""
    least_w = _find_least(columns, columns.watts, code, accepts, room)
    cheapest = (buckets.energy_price + extra[:, None] * buckets.budget).min(axis=1)
    return ClassTable(code, accepts, cheapest * least_w, pause, extra)


def count_iterations(jobs: int) -> int:
    """Return the number of price steps for so many jobs: bounded by work, not by a clock."""
    return min(max(_LEAST_ITERATIONS, _JOB_ITERATIONS // max(jobs, 1)), _MOST_ITERATIONS)


def _divide_time(work: Floats, work_s: Floats, total: float, least_s: float) -> tuple[Floats, Floats]:
    """Return begin and end of the buckets: geometric, from a restart to the end of all work.

    Under a budget that end is not before *least_s*.
    """
    end_s = 1.5 * max(float(work.sum()) / total, least_s)
    end_s = max(end_s, 1.2 * float(work_s.max(initial=0.0)), 600.0)
    first_s = max(_FIRST_BUCKET_S, end_s / 4000)
    edges = np.concatenate(([0.0], np.geomspace(first_s, end_s, BUCKET_COUNT - 1), [_TAIL * end_s]))
    return edges[:-1].copy(), edges[1:].copy()


def _guess(
    rows: MarketRows, work: Floats, total: float, buckets: Buckets, kinds: int
) -> tuple[Floats, Floats]:
    """Return prices by kind and bucket and the value of each row's work, if one fast machine did all work."""
    weight = (rows.weight + rows.late) * (rows.group >= 0)
    order = np.argsort(work, kind="stable")
    ends_s = np.empty(len(work))
    ends_s[order] = np.cumsum(work[order]) / total
    left = np.concatenate((np.cumsum(weight[order][::-1])[::-1], [0.0]))
    middle_s = 0.5 * (buckets.begin_s + buckets.end_s)
    after = np.searchsorted(ends_s[order], middle_s, side="right")
    price = np.maximum(left[after] / total, 1e-9)
    gpu = np.repeat(price[None], kinds, axis=0) * (1.0 if kinds == 1 else 0.7)
    # Jobs with the same work end together here, so that the search begins, and ends, at the same value: of
    # equal jobs the first to be submitted is the first to run.
    last = np.searchsorted(work[order], work, side="right") - 1
    together_s = ends_s[order][last]
    value = np.maximum(together_s - work / total, 1.0) * weight + 0.5 * work * (weight.sum() / total) + 1e-6
    return np.ascontiguousarray(gpu), value


@kernel(COLUMNS, F1, I1, I1, I1)
def _find_least(columns: Columns, rate: Floats, code: Ints, accepts: Ints, room: Ints) -> Floats:
    """Return the least that a unit of work of each class needs, if each column needs so much per second."""
    least = np.zeros(len(code))
    for g in range(len(code)):
        best = np.inf
        for c in range(columns.start[code[g]], columns.start[code[g] + 1]):
            k = columns.kind[c]
            if (accepts[g] >> k) & 1 == 1 and columns.gpus[c] <= room[k]:
                best = min(best, rate[c] / columns.speed[c])
        least[g] = best if best < np.inf else 0.0
    return least


@inner
def _fits(used: Floats, room: Ints, buckets: Buckets) -> bool:
    """Return whether GPU-seconds by kind and bucket are no more than there are."""
    for k in range(used.shape[0]):
        for t in range(used.shape[1]):
            if used[k, t] > 1.000001 * room[k] * (buckets.end_s[t] - buckets.begin_s[t]):
                return False
    return True


@kernel(ROWS, COLUMNS, CLASSES, I1)
def _can_all_run(rows: MarketRows, columns: Columns, classes: ClassTable, room: Ints) -> bool:
    """Return whether there are as many GPUs as all rows need at least, of whatever kind."""
    least = np.zeros(len(classes.code))
    for g in range(len(least)):
        first, last = columns.start[classes.code[g]], columns.start[classes.code[g] + 1]
        least[g] = columns.gpus[first:last].min() if last > first else 0.0
    needed = 0.0
    for g in rows.group:
        needed += least[g] if g >= 0 else 0.0
    return bool(needed <= room.sum())


@kernel(ROWS, COLUMNS, CLASSES, BUCKETS, I1, F2, F1, BOOL, INT, INT, INT)
def _clear(
    rows: MarketRows,
    columns: Columns,
    classes: ClassTable,
    buckets: Buckets,
    room: Ints,
    guess: Floats,
    values: Floats,
    is_warm: bool,
    first: int,
    iterations: int,
    widest: int,
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return prices, the values of a unit and of all of each row's work, GPU-seconds, energy and bound.

    If it *is_warm*, prices and values are those of a similar problem. If the *first* step is -1, GPUs are
    free in it, and it is the last one if there are enough of them.
    """
    kinds, times, count = len(room), len(buckets.begin_s), len(rows.work_s)
    hulls = allocate_hulls(classes, buckets, widest)
    gpu, value = guess.copy(), values.copy()
    used, worth = np.zeros((kinds, times)), np.zeros(count)
    energy_j, best = 0.0, -np.inf
    summed, summands = np.zeros((kinds, times)), 0
    for step in range(first, iterations + 1):
        if step < 0:
            gpu[:] = _FREE
        if step == iterations and summands > 0:
            gpu[:] = np.exp(summed / summands)
        build_hulls(hulls, columns, classes, buckets, room, gpu)
        used[:] = 0.0
        energy_j, bound = 0.0, 0.0
        spread = _CLOSE if step >= _CLOSE_STEP else _NEAR if step > 0 or is_warm else _WIDE
        precision = _PRECISION if step < 0 or step + 2 > iterations else _COARSE
        for j in range(count):
            g = rows.group[j]
            if g < 0:
                continue
            low, high, share, loss = find_value(j, value[j], spread, precision, rows, buckets, hulls)
            value[j] = high
            bound += loss + classes.least_j[g] * rows.work_s[j]
            worth[j] = (high - compute_time_price(j, buckets.begin_s[0], rows)) / rows.work_s[
                j
            ] + classes.least_j[g]
            energy_j += add_use(j, high, share, rows, buckets, hulls, columns, used)
            if share < 1.0:
                energy_j += add_use(j, low, 1.0 - share, rows, buckets, hulls, columns, used)
        for k in range(kinds):
            for t in range(times):
                bound -= gpu[k, t] * room[k] * (buckets.end_s[t] - buckets.begin_s[t])
        best = max(best, bound)
        if step == iterations or (step < 0 and _fits(used, room, buckets)):
            break
        if step < 0:
            gpu[:] = guess
            value[:] = values
            continue
        move_prices(gpu, used, room, classes, buckets, step)
        if 2 * step >= iterations:
            summed += np.log(gpu)
            summands += 1
    return gpu, worth, value, used, np.array([energy_j, best])


@kernel(ROWS, COLUMNS, CLASSES, BUCKETS, I1, F2, F1, INT)
def _find_starts(
    rows: MarketRows,
    columns: Columns,
    classes: ClassTable,
    buckets: Buckets,
    room: Ints,
    gpu: Floats,
    values: Floats,
    widest: int,
) -> Floats:
    """Return when each row first runs at these prices, in seconds from now; nan: never."""
    hulls = allocate_hulls(classes, buckets, widest)
    build_hulls(hulls, columns, classes, buckets, room, gpu)
    start_s = np.full(len(rows.work_s), np.nan)
    for j in range(len(start_s)):
        g = rows.group[j]
        for t in range(len(buckets.begin_s)):
            if g < 0:
                break
            middle_s = 0.5 * (buckets.begin_s[t] + buckets.end_s[t])
            worth = (values[j] - compute_time_price(j, middle_s, rows)) / rows.work_s[j]
            if worth > 0 and find_point(worth, hulls.points[g, t], hulls.slope[g, t], 0) > 0:
                start_s[j] = buckets.begin_s[t]
                break
    return start_s


@kernel(ROWS, COLUMNS, CLASSES, BUCKETS, I1, F2, F1, INT)
def _compute_costs(
    rows: MarketRows,
    columns: Columns,
    classes: ClassTable,
    buckets: Buckets,
    room: Ints,
    gpu: Floats,
    guess: Floats,
    widest: int,
) -> Floats:
    hulls = allocate_hulls(classes, buckets, widest)
    build_hulls(hulls, columns, classes, buckets, room, gpu)
    cost = np.full(len(rows.work_s), np.inf)
    for j in range(len(cost)):
        g = rows.group[j]
        if hulls.points[g, 0] > 1:
            loss = find_value(j, guess[j], 1.6, _PRECISION, rows, buckets, hulls)[3]
            cost[j] = loss + classes.least_j[g] * rows.work_s[j]
    return cost
