"""Search for the knob value at which a run meets a target energy or mean JCT.

Neither metric need be monotonic in the knob: a slow run may use more energy than a fast one, because nodes
are on for longer. So all values of a grid are run, and wherever the target lies between two neighbours, the
interval between them is bisected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from wattline.errors import ConfigError

if TYPE_CHECKING:
    from wattline.reports.summary import Report  # reports import this module

Metric = Literal["energy_j", "jct_mean_s"]
Side = Literal["", "above", "under", "below"]

GRID = tuple(step / 10 for step in range(11))
"""Knob values from 0 to 1 in steps of 0.1."""

_OTHER_METRIC: dict[Metric, Metric] = {"energy_j": "jct_mean_s", "jct_mean_s": "energy_j"}


@dataclass(frozen=True)
class KnobMatch:
    """The run that compares best with a target.

    *reached* is True if it meets the target within the tolerance; if not, *side* is one of: `above`, the
    target is above all runs; `under`, the run that is best in the other metric stays under the target;
    `below`, the target is below all runs, and this run is the nearest.
    """

    value: float
    report: Report
    reached: bool
    side: Side = ""


def find_knob_value(
    run: Callable[[float], Report],
    target: float,
    metric: Metric,
    *,
    grid: Sequence[float] = GRID,
    tolerance: float = 0.01,
    max_bisections: int = 8,
) -> KnobMatch:
    """Return the knob value at which *run* has *target* in *metric*, within *tolerance* of it.

    Of several runs at or under the target, the best in the other metric is returned: with no more energy
    the lowest mean JCT, with no longer mean JCT the lowest energy. Between two neighbours of the *grid*
    at most *max_bisections* more values are run.
    """
    if not target > 0 or not math.isfinite(target):
        raise ConfigError(f"the target of {metric} is {target}, expected a finite number above 0")
    runs = {value: run(value) for value in sorted(set(grid))}
    for low, high in pairwise(list(runs)):
        _bisect(run, runs, low, high, target, metric, tolerance, max_bisections)
    other = _OTHER_METRIC[metric]
    candidates = [(v, r) for v, r in runs.items() if _has(r, metric) and _has(r, other)]
    if not candidates:
        raise ConfigError(f"no run has both {metric} and {other}, expected some job to finish")
    # A run that leaves jobs unfinished has a lower energy and mean JCT than a run that finishes them.
    fewest = min(r.unfinished for _, r in candidates)
    candidates = [(v, r) for v, r in candidates if r.unfinished == fewest]
    within = [(v, r) for v, r in candidates if getattr(r, metric) <= target * (1 + tolerance)]
    ranked_by = other if within else metric
    value, best = min(within or candidates, key=lambda run: (getattr(run[1], ranked_by), run[0]))
    if not within:
        return KnobMatch(value, best, reached=False, side="below")
    if _is_near(best, target, metric, tolerance):
        return KnobMatch(value, best, reached=True)
    above = all(getattr(r, metric) < target for _, r in candidates)
    return KnobMatch(value, best, reached=False, side="above" if above else "under")


def _bisect(
    run: Callable[[float], Report],
    runs: dict[float, Report],
    low: float,
    high: float,
    target: float,
    metric: Metric,
    tolerance: float,
    max_bisections: int,
) -> None:
    """Add runs between *low* and *high* to *runs* until *metric* is near *target*, if it crosses it there."""
    ends = (runs[low], runs[high])
    if not all(_has(r, metric) for r in ends) or any(_is_near(r, target, metric, tolerance) for r in ends):
        return
    rises = getattr(ends[1], metric) > target
    if rises == (getattr(ends[0], metric) > target):
        return
    for _ in range(max_bisections):
        middle = (low + high) / 2
        result = runs[middle] = run(middle)
        if not _has(result, metric) or _is_near(result, target, metric, tolerance):
            return
        if (getattr(result, metric) > target) == rises:
            high = middle
        else:
            low = middle


def _has(report: Report, metric: Metric) -> bool:
    return math.isfinite(getattr(report, metric))


def _is_near(report: Report, target: float, metric: Metric, tolerance: float) -> bool:
    return bool(abs(getattr(report, metric) - target) <= tolerance * target)
