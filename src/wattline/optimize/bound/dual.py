"""The Lagrangian dual of the fluid relaxation: a lower bound for every set of GPU prices.

    Σ_j max_μ { μ − ∫ max(0, max_c (μ − (t − r_j)) · s_c / W_j − λ_k(t) · n_c − ν · P_c) dt } − Σ_k N_k ∫ λ_k

r_j is the submission of job j and W_j its work; a column c runs it at speed s_c on n_c GPUs of kind k with
P_c watts. Prices λ are constant within buckets of time and 0 after the last. Within a bucket the integrand
is convex in t, so the trapezoid is not below the integral, and the result not above the dual's value:
it stays a bound whatever the buckets are, and whatever μ was found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import F1, F2, F3, I1, I2, inner, kernel, record

_DOUBLINGS, _HALVINGS = 60, 40
_CLOSE = 1e-4  # relative distance at which the search for μ ends


class DualColumns(NamedTuple):
    """Columns as `BoundColumns` has them, with watts times the energy price."""

    size: Ints
    gpus: Floats
    speed: Floats
    cost: Floats


class DualJobs(NamedTuple):
    """Class, submission and work of each job, and the first bucket that ends after its submission."""

    job_class: Ints
    submit_s: Floats
    work_s: Floats
    first: Ints


@inner
def _best(worth: float, c: int, b: int, columns: DualColumns, price: Floats) -> tuple[float, int, int]:
    """Return the largest gain per second at *worth* per unit of speed, and its kind and column (-1: none)."""
    gain, kind, column = 0.0, -1, -1
    for k in range(columns.size.shape[1]):
        each = price[k, b]
        for i in range(columns.size[c, k]):
            one = worth * columns.speed[c, k, i] - each * columns.gpus[c, k, i] - columns.cost[c, k, i]
            if one > gain:
                gain, kind, column = one, k, i
    return gain, kind, column


@inner
def _evaluate(
    mu: float, j: int, jobs: DualJobs, edges: Floats, columns: DualColumns, price: Floats, last: Floats
) -> tuple[float, float]:
    """Return the bound of one job at *mu*, and its progress there (1: mu is the best)."""
    c, r, work = jobs.job_class[j], jobs.submit_s[j], jobs.work_s[j]
    value, progress = mu, 0.0
    for b in range(jobs.first[j], len(edges) - 1):
        left = max(edges[b], r)
        if mu <= left - r:
            return value, progress
        right = min(edges[b + 1], r + mu)  # beyond it nothing is gained
        half = 0.5 * (right - left)
        for t in (left, right):
            gain, k, i = _best((mu - (t - r)) / work, c, b, columns, price)
            value -= half * gain
            if k >= 0:
                progress += half * columns.speed[c, k, i] / work
    rest = mu - (max(edges[-1], r) - r)
    if rest > 0:
        # Without prices of GPUs: the gain is convex in the time left, so its end points bound it.
        value -= 0.5 * rest * _free_gain(rest / work, c, columns)
        progress += rest * last[c] / work
    return value, progress


@inner
def _free_gain(worth: float, c: int, columns: DualColumns) -> float:
    gain = 0.0
    for k in range(columns.size.shape[1]):
        for i in range(columns.size[c, k]):
            gain = max(gain, worth * columns.speed[c, k, i] - columns.cost[c, k, i])
    return gain


@inner
def _add_use(
    mu: float, j: int, jobs: DualJobs, edges: Floats, columns: DualColumns, price: Floats, use: Floats
) -> None:
    c, r, work = jobs.job_class[j], jobs.submit_s[j], jobs.work_s[j]
    for b in range(jobs.first[j], len(edges) - 1):
        left = max(edges[b], r)
        if mu <= left - r:
            return
        right = min(edges[b + 1], r + mu)
        for t in (left, right):
            _, k, i = _best((mu - (t - r)) / work, c, b, columns, price)
            if k >= 0:
                use[k, b] += 0.5 * (right - left) * columns.gpus[c, k, i]


@kernel(
    record(DualJobs, I1, F1, F1, I1),
    F1,
    record(DualColumns, I2, F3, F3, F3),
    F2,
    F1,
    F1,
)
def evaluate_dual(
    jobs: DualJobs, edges: Floats, columns: DualColumns, price: Floats, last: Floats, guess: Floats
) -> tuple[float, Floats, Floats, Floats]:
    """Return the sum over jobs, the use of GPUs by kind and bucket, the μ of each job, and its part.

    *edges* are those of the buckets, *price* λ by kind and bucket, *last* the largest speed of each class,
    *guess* a μ of each job to begin with. The use is that of the columns at the μ that was found.
    """
    count, buckets = len(jobs.job_class), len(edges) - 1
    use = np.zeros((price.shape[0], buckets))
    mus, parts = np.empty(count), np.empty(count)
    total = 0.0
    for j in range(count):
        low, high = 0.0, max(guess[j], 1e-6)
        best, best_mu = -1e300, 0.0
        for _ in range(_DOUBLINGS):
            value, progress = _evaluate(high, j, jobs, edges, columns, price, last)
            if value > best:
                best, best_mu = value, high
            if progress >= 1.0:
                break
            low, high = high, 1.5 * high
        if low == 0.0:
            low = high
            for _ in range(_DOUBLINGS):
                low = low / 1.5
                value, progress = _evaluate(low, j, jobs, edges, columns, price, last)
                if value > best:
                    best, best_mu = value, low
                if progress < 1.0:
                    break
                high = low
        for _ in range(_HALVINGS):
            if high - low <= _CLOSE * high:
                break
            middle = 0.5 * (low + high)
            value, progress = _evaluate(middle, j, jobs, edges, columns, price, last)
            if value > best:
                best, best_mu = value, middle
            if progress >= 1.0:
                high = middle
            else:
                low = middle
        total += best
        mus[j], parts[j] = best_mu, best
        _add_use(best_mu, j, jobs, edges, columns, price, use)
    return total, use, mus, parts
