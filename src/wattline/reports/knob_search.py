"""Which value of a knob gives the same energy, or the same JCT, as another run?

Neither need rise or fall with the knob: a slow run may use more energy than a fast one, because nodes are on
for longer. So all values of a grid are tried, and wherever the target lies between two neighbours the way
between them is halved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from wattline.errors import ConfigError

if TYPE_CHECKING:
    from wattline.reports.summary import Report  # reports tell of sweeps, too

Figure = Literal["energy_j", "jct_mean_s"]
Side = Literal["", "above", "under", "below"]

GRID = tuple(step / 10 for step in range(11))
"""From 0 to 1 in tenths."""

_OTHER: dict[Figure, Figure] = {"energy_j": "jct_mean_s", "jct_mean_s": "energy_j"}


@dataclass(frozen=True)
class Match:
    """The run that compares best with a target, and whether it meets it.

    If it does not, *side* says how: `above`, the target is above all that the knob can do; `under`, the best
    run in the other figure is this one, which stays under the target; `below`, the target is below all that
    the knob can do, and this is the nearest.
    """

    value: float
    report: Report
    reached: bool
    side: Side = ""


def match(
    run: Callable[[float], Report],
    target: float,
    figure: Figure,
    *,
    grid: Sequence[float] = GRID,
    tolerance: float = 0.01,
    tries: int = 8,
) -> Match:
    """The value of the knob at which *run* has *target* in *figure*, within *tolerance* of it.

    Of several, and of those under the target, the one that is best in the other figure: with no more energy
    the lowest mean JCT, with no longer mean JCT the lowest energy. Between two neighbours of the *grid*
    at most *tries* more values are run.
    """
    if not target > 0 or not math.isfinite(target):
        raise ConfigError(f"{figure} is {target}, expected a number above 0 to be met")
    seen = {value: run(value) for value in sorted(set(grid))}
    for low, high in pairwise(list(seen)):
        _halve(run, seen, low, high, target, figure, tolerance, tries)
    other = _OTHER[figure]
    known = [(v, r) for v, r in seen.items() if _known(r, figure) and _known(r, other)]
    if not known:
        raise ConfigError(f"no run has {figure} and {other}, expected some job to finish")
    # Who leaves jobs that other runs finish looks quick and thrifty, and is neither.
    fewest = min(r.unfinished for _, r in known)
    known = [(v, r) for v, r in known if r.unfinished == fewest]
    within = [(v, r) for v, r in known if getattr(r, figure) <= target * (1 + tolerance)]
    value, best = min(within or known, key=lambda run: (getattr(run[1], other if within else figure), run[0]))
    if not within:
        return Match(value, best, reached=False, side="below")
    if _near(best, target, figure, tolerance):
        return Match(value, best, reached=True)
    above = all(getattr(r, figure) < target for _, r in known)
    return Match(value, best, reached=False, side="above" if above else "under")


def _halve(
    run: Callable[[float], Report],
    seen: dict[float, Report],
    low: float,
    high: float,
    target: float,
    figure: Figure,
    tolerance: float,
    tries: int,
) -> None:
    """Add runs to *seen*, closer and closer to where *figure* crosses *target*, if it does so in between."""
    ends = (seen[low], seen[high])
    if not all(_known(r, figure) for r in ends) or any(_near(r, target, figure, tolerance) for r in ends):
        return
    rises = getattr(ends[1], figure) > target
    if rises == (getattr(ends[0], figure) > target):
        return
    for _ in range(tries):
        middle = (low + high) / 2
        found = seen[middle] = run(middle)
        if not _known(found, figure) or _near(found, target, figure, tolerance):
            return
        if (getattr(found, figure) > target) == rises:
            high = middle
        else:
            low = middle


def _known(report: Report, figure: Figure) -> bool:
    return math.isfinite(getattr(report, figure))


def _near(report: Report, target: float, figure: Figure, tolerance: float) -> bool:
    return bool(abs(getattr(report, figure) - target) <= tolerance * target)
