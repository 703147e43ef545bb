"""Clairvoyant lower bounds of the mean JCT and the energy of a whole trace.

They hold for every policy: one that knows all jobs beforehand, stops and restarts them for nothing, and gives
each any configuration of `wattline.optimize.bound.columns`. The mean JCT is bounded by the mean busy time of
a fluid relaxation plus half of the fastest run (Goemans 1997), with Lagrangian prices of GPUs over time
(`wattline.optimize.bound.dual`), and by two closed bounds; the largest counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wattline.core.host_share import fill_host_shares
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.core.table import Floats, Ints
from wattline.optimize.bound.columns import BoundColumns, build_columns
from wattline.optimize.bound.dual import DualColumns, DualJobs, evaluate_dual
from wattline.optimize.bound.limits import LowerBound
from wattline.optimize.bound.single_machine import schedule_shortest_first, sum_shortest_remaining

BUCKETS = 200
"""Buckets of time with one price of each GPU kind; the bound is valid with any number."""

_ROUNDING = 1e-9  # simulated times are sums of rounded ones
_STEPS = 100  # of the ascent
_FIRST_STEP, _LARGEST_STEP, _LEAST_STEP = 0.1, 0.3, 1e-5  # as a share of the prices
_FLOOR = 0.02  # of the largest price: the scale of steps of prices near 0
_PATIENCE = 6  # steps without gain after which the ascent goes on from where it is


def find_lower_bound(
    models: Models,
    jobs: Jobs,
    nodes: Nodes,
    *,
    energy_price: float = 0.0,
    buckets: int = BUCKETS,
    steps: int = _STEPS,
) -> LowerBound:
    """Return the bounds of *jobs* on *nodes* with the true *models*.

    With an *energy_price* (seconds per joule) `jct_mean_s` is a bound of the mean JCT plus the price times
    the energy per job: a run with E joules has a mean JCT of at least `jct_mean_s` − price · E / jobs.
    """
    if not len(jobs):
        return LowerBound(none="no jobs")
    jobs = fill_host_shares(jobs, nodes)
    columns = build_columns(models, jobs, nodes, keep="both" if energy_price > 0 else "fast")
    fastest = columns.fastest[columns.job_class]
    if not np.isfinite(columns.speed).all():
        return LowerBound(none="a speed is not finite")
    if not (fastest > 0).all():
        job = int(np.argmin(fastest > 0))
        return LowerBound(none=f"job {jobs.id[job]} can never run on this cluster")
    works = np.flatnonzero(jobs.duration_s > 0)
    if not len(works):
        return LowerBound(0.0, 0.0)
    problem = _Problem.build(columns, jobs, nodes, works, energy_price)
    total_s = max(problem.climb(buckets, steps), problem.sum_single_machine() if not energy_price else 0.0)
    return LowerBound(
        max(0.0, total_s) / len(jobs) * (1 - _ROUNDING), _sum_energy_j(models, jobs, nodes) * (1 - _ROUNDING)
    )


def _sum_energy_j(models: Models, jobs: Jobs, nodes: Nodes) -> float:
    """Return the joules of all jobs in their cheapest configuration, nodes off without jobs included."""
    columns = build_columns(models, jobs, nodes, keep="frugal")
    least_j = columns.least(columns.watts).min(axis=1)[columns.job_class]
    return float(least_j @ jobs.duration_s)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Jobs with work, their columns, and the GPUs of each kind."""

    columns: BoundColumns
    dual: DualColumns
    job_class: Ints
    submit_s: Floats
    work_s: Floats
    fastest_s: Floats
    kind_gpus: Floats
    kind_worth: Floats  # how many GPUs of the fastest kind one of each kind is worth

    @classmethod
    def build(
        cls, columns: BoundColumns, jobs: Jobs, nodes: Nodes, rows: Ints, energy_price: float
    ) -> _Problem:
        job_class, work_s = columns.job_class[rows], jobs.duration_s[rows]
        per_gpu = 1.0 / columns.least(columns.gpus)[job_class]  # speed of a GPU at most, by job and kind
        worth = (work_s[:, None] * per_gpu / per_gpu.max(axis=1, keepdims=True)).sum(axis=0)
        return cls(
            columns,
            DualColumns(columns.count, columns.gpus, columns.speed, energy_price * columns.watts),
            np.ascontiguousarray(job_class),
            np.ascontiguousarray(jobs.submit_s[rows]),
            np.ascontiguousarray(work_s),
            work_s / columns.fastest[job_class],
            np.bincount(nodes.kind.codes, nodes.gpus, len(nodes.kind.names)).astype(np.float64),
            np.maximum(worth / max(float(worth.max()), 1e-300), 1e-6),
        )

    @property
    def _needs_s(self) -> Floats:
        """Seconds that the whole cluster needs at least for each job, by the worth of its GPUs."""
        each = (self.columns.least(self.columns.gpus) * self.kind_worth).min(axis=1)[self.job_class]
        return np.asarray(each * self.work_s / float(self.kind_gpus @ self.kind_worth))

    def sum_single_machine(self) -> float:
        """Return a bound of the sum of JCTs: the cluster as one machine, or no job waits."""
        return max(sum_shortest_remaining(self.submit_s, self._needs_s), float(self.fastest_s.sum()))

    def climb(self, buckets: int, steps: int) -> float:
        """Return the best bound of the sum of JCTs that prices were found for."""
        start_s, end_s, job = schedule_shortest_first(self.submit_s, self._needs_s)
        edges = self._list_edges(end_s, buckets)
        price = _find_first_prices(start_s, end_s, self._needs_s[job], edges)
        prices = np.ascontiguousarray(
            price * self.kind_worth[:, None] / float(self.kind_gpus @ self.kind_worth)
        )
        room = self.kind_gpus[:, None] * np.diff(edges)
        first = np.searchsorted(edges[1:], self.submit_s, side="right").astype(np.int64)
        jobs = DualJobs(self.job_class, self.submit_s, self.work_s, first)
        last = self.columns.fastest
        guess = np.ascontiguousarray(self.fastest_s)
        half_s = float(self.fastest_s.sum()) / 2

        def evaluate(prices: Floats, guess: Floats) -> tuple[float, Floats, Floats]:
            total, use, mus, _ = evaluate_dual(jobs, edges, self.dual, prices, last, guess)
            return total - float((prices * room).sum()), (use - room) / room, mus

        return half_s + _climb(evaluate, prices, guess, steps)

    def _list_edges(self, end_s: Floats, buckets: int) -> Floats:
        """Return the edges of buckets, half of them even in time, half in arrivals and completions."""
        first_s, last_s = float(self.submit_s.min()), float(end_s.max()) + float(self.fastest_s.max())
        even = np.linspace(first_s, last_s, buckets // 2)
        events = np.concatenate((self.submit_s, end_s))
        crowded = np.quantile(events, np.linspace(0, 1, buckets // 2))
        tail = last_s + (last_s - first_s) * np.geomspace(0.05, 4.0, 12)
        return np.unique(np.concatenate((even, crowded, tail)))


def _find_first_prices(start_s: Floats, end_s: Floats, needs_s: Floats, edges: Floats) -> Floats:
    """Return prices of the whole cluster by bucket: those of the single machine, served shortest first.

    At t that is the sum of 1 / need over the time that is left of the busy period, the best prices if every
    job could use all GPUs.
    """
    left = (end_s - start_s) / needs_s
    price = np.cumsum(left[::-1])[::-1]  # of this interval and all later ones
    idle = np.append(start_s[1:] > end_s[:-1] + 1e-9, True)
    after = np.where(idle, price - left, np.nan)  # of the later busy periods: they do not count
    ends = np.flatnonzero(idle)
    price = price - after[ends][np.searchsorted(ends, np.arange(len(price)))]
    middle = (edges[:-1] + edges[1:]) / 2
    at = np.searchsorted(start_s, middle, side="right") - 1
    busy = (at >= 0) & (middle < end_s[at])
    return np.where(busy, price[at] - (middle - start_s[at]) / needs_s[at], 0.0)


def _climb(
    evaluate: Callable[[Floats, Floats], tuple[float, Floats, Floats]],
    prices: Floats,
    guess: Floats,
    steps: int,
) -> float:
    """Return the largest value of a dual that was found in *steps* steps from *prices*, or without prices.

    *evaluate* returns the value, the excess of use over room, relative to it, and better guesses of μ. Every
    value is a bound, so the steps need not converge.
    """
    best, _, guess = evaluate(np.zeros_like(prices), guess)
    value, excess, guess = evaluate(prices, guess)
    best, top = max(best, value), value
    scale = np.maximum(prices, prices.max(initial=0.0) * _FLOOR)
    at, step, failed = prices, _FIRST_STEP, 0
    for _ in range(steps):
        tried = np.ascontiguousarray(np.maximum(0.0, at + step * scale * np.clip(excess, -1.0, 1.0)))
        value, there, guess = evaluate(tried, guess)
        if value > top:
            at, excess, top, failed = tried, there, value, 0
            step = min(1.3 * step, _LARGEST_STEP)
            continue
        failed += 1
        step = 0.7 * step if step > _LEAST_STEP else _FIRST_STEP / 20
        if failed % _PATIENCE == 0:
            at, excess = tried, there
            scale = np.maximum(tried, tried.max(initial=0.0) * _FLOOR)
    return max(best, top)
