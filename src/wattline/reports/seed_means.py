"""Means over the seeds of a comparison, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from wattline.reports.data.pareto_front import mark_pareto_front
from wattline.reports.summary import Report, finite_or_none

INTERVAL = "95 % interval of the mean, by Student's t"
"""What the intervals are."""


@dataclass(frozen=True)
class Estimate:
    """A figure with a 95 % interval; nan: unknown."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def has_interval(self) -> bool:
        """True if the interval is known."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def half_width(self) -> float:
        """Half of the interval of a mean, which is in its middle; nan: unknown."""
        return self.high - self.value

    def as_dict(self) -> dict[str, float | None]:
        """Return value and interval for JSON."""
        pairs = (("value", self.value), ("low", self.low), ("high", self.high))
        return {name: finite_or_none(value) for name, value in pairs}


def estimate_mean(values: Sequence[float]) -> Estimate:
    """Return the mean of the values of several seeds, and its 95 % interval by Student's t.

    One value has no interval, and a value that is not finite makes the mean unknown.
    """
    numbers = np.array(values, dtype=np.float64)
    if not len(numbers) or not np.isfinite(numbers).all():
        return Estimate(math.nan)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return Estimate(mean)
    if np.ptp(numbers) == 0:
        return Estimate(mean, mean, mean)
    from scipy.stats import t  # 0.3 s, and only sweeps over seeds need it

    half = float(t.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / math.sqrt(len(numbers)))
    return Estimate(mean, mean - half, mean + half)


@dataclass(frozen=True, eq=False)
class SeedRuns:
    """The runs of a comparison with several seeds: reports by run, then by seed."""

    by_run: tuple[tuple[Report, ...], ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in the order of their runs."""
        return tuple(r.seed for r in self.by_run[0])

    @cached_property
    def mean_reports(self) -> tuple[Report, ...]:
        """The report of each run with the first seed, with the means of all numbers; counts may be broken."""
        return tuple(map(_average_reports, self.by_run))

    @property
    def pareto_front(self) -> tuple[bool, ...]:
        """For each run, if no other run beats its means in both energy and mean JCT."""
        return mark_pareto_front(self.mean_reports)

    def estimate(self, name: str) -> tuple[Estimate, ...]:
        """Return the mean of a figure of `Report` for each run.

        With few seeds that differ much, an interval may reach below 0, though no figure can.
        """
        return tuple(estimate_mean([getattr(r, name) for r in reports]) for reports in self.by_run)

    def estimate_ratios(self, name: str) -> tuple[Estimate, ...]:
        """Return for each run the mean of its ratios to the first run with the same seed.

        Runs with the same seed share their trace, so that a seed with many jobs has many in both.
        """
        first = [getattr(r, name) for r in self.by_run[0]]
        return tuple(
            estimate_mean(
                [
                    getattr(r, name) / base if base > 0 else math.nan
                    for r, base in zip(reports, first, strict=True)
                ]
            )
            for reports in self.by_run
        )

    def as_dict(self, figures: Sequence[str], ratios: Sequence[str]) -> dict[str, Any]:
        """Return means of *figures*, and of *ratios* to the first run, for JSON, in the order of runs."""
        return {
            "count": len(self.seeds),
            "seeds": list(self.seeds),
            "interval": INTERVAL,
            "means": {name: [e.as_dict() for e in self.estimate(name)] for name in figures},
            "ratios": {name: [e.as_dict() for e in self.estimate_ratios(name)] for name in ratios},
            "pareto": list(self.pareto_front),
        }


def _average_reports(reports: Sequence[Report]) -> Report:
    """Return the first of *reports* with the means of all numbers over them."""
    numbers = [
        f.name
        for f in fields(Report)
        if f.name != "seed" and isinstance(getattr(reports[0], f.name), int | float)
    ]
    means: dict[str, Any] = {name: float(np.mean([getattr(r, name) for r in reports])) for name in numbers}
    return replace(reports[0], **means)
