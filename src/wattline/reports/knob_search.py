"""Search for the knob value at which a run meets a target energy or mean JCT.

Neither metric need be monotonic in the knob: a slow run may use more energy than a fast one, because nodes
are on for longer. So all values of a grid are run, and wherever the target lies between two neighbours, the
interval between them is bisected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from wattline.core.energy_knob import EnergyKnob
from wattline.errors import ConfigError

if TYPE_CHECKING:
    from wattline.reports.summary import Report  # reports import this module

Metric = Literal["energy_j", "jct_mean_s"]
Side = Literal["", "above", "under", "below"]

GRID = tuple(step / 10 for step in range(11))
"""Knob values from 0 to 1 in steps of 0.1."""

_OTHER_METRIC: dict[Metric, Metric] = {"energy_j": "jct_mean_s", "jct_mean_s": "energy_j"}
_AS_GOOD = 1.05
"""A run that meets the target may be so many times as slow, or as dear, as one that stays under it."""
_STEP = 8.0  # between two values on a log scale
_MOST_STEPS = 12
_AROUND = tuple(base**sign for base in (1.03, 1.08, 1.15, 1.25, 1.4, 1.7) for sign in (1, -1))
_STEADY, _STEADY_STEPS = 1e-3, 2  # relative change, and steps in a row with no more than that


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
    the lowest mean JCT, with no longer mean JCT the lowest energy. A run that meets the target is preferred
    if it is at most `_AS_GOOD` worse than that. Between two neighbours of the *grid* at most *max_bisections*
    more values are run.
    """
    _check_target(target, metric)
    runs = {value: run(value) for value in sorted(set(grid))}
    for low, high in pairwise(list(runs)):
        _bisect(run, runs, low, high, target, metric, tolerance, max_bisections, _halve)
    return _choose_match(runs, target, metric, tolerance)


def search_log_scale(
    run: Callable[[float], Report],
    target: float,
    metric: Metric,
    knob: EnergyKnob,
    *,
    tolerance: float = 0.01,
    max_bisections: int = 10,
) -> KnobMatch:
    """Return the value of a *knob* on a log scale at which *run* has *target* in *metric*.

    From `knob.start` values grow or shrink by `_STEP` until the target lies between two neighbours, or the
    metric changes no more; then the interval is bisected as in `find_knob_value`.
    """
    _check_target(target, metric)
    runs = {0.0: run(0.0), knob.start: run(knob.start)}
    beyond = _exceeds(runs[0.0], target, metric) == _exceeds(runs[knob.start], target, metric)
    step, value, steady = (_STEP if beyond else 1 / _STEP), knob.start, 0
    most = max(knob.fastest, knob.cheapest)
    for _ in range(_MOST_STEPS):
        last, value = runs[value], min(value * step, most)
        if value in runs:
            break
        result = runs[value] = run(value)
        if _exceeds(result, target, metric) != _exceeds(last, target, metric):
            break
        steady = steady + 1 if _is_near(result, getattr(last, metric), metric, _STEADY) else 0
        if steady >= _STEADY_STEPS:
            break
    for low, high in pairwise(sorted(runs)):
        _bisect(run, runs, low, high, target, metric, tolerance, max_bisections, knob.find_middle)
    _look_around(run, runs, target, metric, tolerance, most)
    return _choose_match(runs, target, metric, tolerance)


def _look_around(
    run: Callable[[float], Report],
    runs: dict[float, Report],
    target: float,
    metric: Metric,
    tolerance: float,
    most: float,
) -> None:
    """Add runs around the value nearest to *target* if none is near enough: metrics jump as knobs turn."""
    known = {value: result for value, result in runs.items() if _has(result, metric) and value > 0}
    crossed = len({_exceeds(result, target, metric) for result in runs.values()}) > 1
    if not crossed or not known or any(_is_near(r, target, metric, tolerance) for r in runs.values()):
        return
    centre = min(known, key=lambda value: abs(getattr(known[value], metric) - target))
    for factor in _AROUND:
        value = min(centre * factor, most)
        if value not in runs:
            runs[value] = run(value)
            if _is_near(runs[value], target, metric, tolerance):
                return


def _check_target(target: float, metric: Metric) -> None:
    if not target > 0 or not math.isfinite(target):
        raise ConfigError(f"the target of {metric} is {target}, expected a finite number above 0")


def _choose_match(runs: Mapping[float, Report], target: float, metric: Metric, tolerance: float) -> KnobMatch:
    """Return the run that compares best with *target*."""
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
    good = _AS_GOOD * getattr(best, other)
    near = [
        (getattr(r, other), v, r)
        for v, r in within
        if _is_near(r, target, metric, tolerance) and getattr(r, other) <= good
    ]
    if near:
        _, value, best = min(near, key=lambda run: run[:2])
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
    find_middle: Callable[[float, float], float],
) -> None:
    """Add runs between *low* and *high* to *runs* until *metric* is near *target*, if it crosses it there."""
    ends = (runs[low], runs[high])
    if not all(_has(r, metric) for r in ends) or any(_is_near(r, target, metric, tolerance) for r in ends):
        return
    rises = getattr(ends[1], metric) > target
    if rises == (getattr(ends[0], metric) > target):
        return
    for _ in range(max_bisections):
        middle = find_middle(low, high)
        result = runs[middle] = run(middle)
        if not _has(result, metric) or _is_near(result, target, metric, tolerance):
            return
        if (getattr(result, metric) > target) == rises:
            high = middle
        else:
            low = middle


def _halve(low: float, high: float) -> float:
    return (low + high) / 2


def _exceeds(report: Report, target: float, metric: Metric) -> bool:
    return bool(getattr(report, metric) > target)


def _has(report: Report, metric: Metric) -> bool:
    return math.isfinite(getattr(report, metric))


def _is_near(report: Report, target: float, metric: Metric, tolerance: float) -> bool:
    return bool(abs(getattr(report, metric) - target) <= tolerance * target)
