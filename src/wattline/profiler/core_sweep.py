"""Which core counts are worth measuring, and how fast is a job at the others?

Optimistic profiling (Synergy, OSDI'22): only cores are varied, with all memory given, and of the cores
only a few counts are measured. Both ends first, then some interval is split; one whose ends differ by
less than *threshold* in speed is left as it is.

Seconds per sample over 1/cores are a convex, rising line: cores that work side by side, max(fixed +
core_s/c, …), see `model.demand`. So a point between two others lies below the chord between them and
above the lines through their neighbours, and the interval in which the two are furthest apart is split
first. Outside, more cores never make it slower, and never more than so many times as fast.

Deviates: Synergy takes intervals as they come; the order matters where *points* run out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats
from wattline.errors import ConfigError
from wattline.measurement.points import Profile
from wattline.models.demand import Demand

MEMORY_SHARES = tuple(tenth / 10 for tenth in range(10))
"""Of the data set: for how much memory speeds are derived; all of it is what is measured."""

_KINKED = 0.7  # how near to the neighbours' lines a point is taken to be: most curves have one sharp bend


class _Interval(NamedTuple):
    """Two neighbouring measured core counts, as x = 1/cores, with bounds on what lies between."""

    left: float  # x of fewer cores: the larger one
    right: float
    left_s: float  # seconds per sample there
    right_s: float
    left_slope: float  # of the line through the left end and its neighbour
    right_slope: float

    def chord_s(self, x: Floats) -> Floats:
        share = (x - self.right) / (self.left - self.right)
        return np.asarray(self.right_s + share * (self.left_s - self.right_s))

    def least_s(self, x: Floats) -> Floats:
        """The higher of the two neighbours' lines, but never above the chord, nor below both ends."""
        from_left = self.left_s + self.left_slope * (x - self.left)
        from_right = self.right_s + self.right_slope * (x - self.right)
        lines_s = np.maximum(np.maximum(from_left, from_right), min(self.left_s, self.right_s))
        return np.minimum(lines_s, self.chord_s(x))

    def unsure(self, x: Floats) -> Floats:
        """How far apart the bounds are, relative."""
        return np.asarray(self.chord_s(x) / self.least_s(x) - 1.0)


@dataclass(frozen=True)
class Sweep:
    """The core counts of *grid* that are worth measuring, at most *points* of them, one after the other."""

    grid: tuple[float, ...]
    threshold: float = 0.1
    points: int = 8

    def __post_init__(self) -> None:
        if not self.grid or min(self.grid) <= 0 or list(self.grid) != sorted(set(self.grid)):
            raise ConfigError(f"grid is {self.grid}, expected rising numbers of cores above 0")
        if not 0 <= self.threshold < 1:
            raise ConfigError(f"threshold is {self.threshold}, expected a share from 0 to below 1")
        if self.points < 2:
            raise ConfigError(f"points is {self.points}, expected at least 2")

    def __call__(
        self, measure: Callable[[float], float], known: Mapping[float, float] | None = None
    ) -> dict[float, float]:
        """Samples per second by cores, *known* ones among them, in the order in which they were measured."""
        found = dict(known or {})
        while (cpus := self.next_cpus(found)) is not None:
            found[cpus] = measure(cpus)
        return found

    def next_cpus(self, known: Mapping[float, float]) -> float | None:
        """What to measure after all that is *known*; None: it is enough."""
        ends = (self.grid[-1], self.grid[0])
        for end in ends:
            if end not in known:
                return end
        if len(known) >= self.points:
            return None
        best: tuple[float, float] | None = None
        for part in _intervals(known):
            inside = np.array([c for c in self.grid if 1 / part.left < c < 1 / part.right])
            differ = part.left_s / part.right_s - 1.0
            if not len(inside) or abs(differ) < self.threshold:
                continue
            # Where nothing is unsure, the widest: a line that was drawn from few points.
            worth = float(part.unsure(1 / inside).max()) + 0.1 * float(np.log1p(abs(differ)))
            if best is None or worth > best[0]:
                best = worth, _middle(inside, part)
        return None if best is None else best[1]

    def is_flat(self, known: Mapping[float, float]) -> bool:
        """Whether the fewest cores are as good as the most."""
        most = known[self.grid[-1]]
        return len(self.grid) > 1 and most / known[self.grid[0]] - 1.0 < self.threshold


class Point(NamedTuple):
    """What was measured with so many cores: samples per second, their standard error, in how many steps."""

    cpus: float
    samples_s: float
    stderr: float
    steps: int


def between(known: Mapping[float, float], cpus: Floats) -> Floats:
    """Samples per second at *cpus*: as measured, or nearer to the neighbours' lines than to the chord."""
    cpus = np.asarray(cpus, np.float64)
    least, most = min(known), max(known)
    speed = np.where(cpus < least, known[least] * cpus / least, known[most])
    for part in _intervals(known):
        here = (1 / cpus <= part.left) & (1 / cpus >= part.right)
        x = 1 / cpus[here]
        speed[here] = 1.0 / (_KINKED * part.least_s(x) + (1.0 - _KINKED) * part.chord_s(x))
    for c, samples_s in known.items():
        speed[cpus == c] = samples_s
    return speed


def profile(
    points: Sequence[Point],
    *,
    model: str,
    gpu: str,
    gpus: int,
    batch: float,
    demand: Demand | None,
    read_mib_s: float = np.nan,
) -> Profile:
    """The table of what was measured, and below it the memory axis of each point where a *demand* tells it.

    A measured row has a standard error and no limit of memory, a derived one has a limit and no error.
    """
    cpus, samples_s, stderr, steps = (np.array(column) for column in zip(*sorted(points), strict=True))
    levels_gib = [share * demand.dataset_gib for share in MEMORY_SHARES] if demand else []
    derived = [
        demand.with_memory(samples_s / gpus, np.full(len(cpus), gib)) * gpus for gib in levels_gib if demand
    ]
    more = len(derived) * len(cpus)
    return Profile.of(
        model=model,
        gpu=gpu,
        gpus=gpus,
        nodes=1,
        batch=batch,
        cpus=np.tile(cpus, 1 + len(derived)),
        mem_gib=np.repeat([np.nan, *levels_gib], len(cpus)),
        read_mib_s=read_mib_s,
        samples_s=np.concatenate((samples_s, *derived)),
        n=np.concatenate((np.maximum(steps, 1), np.ones(more))),
        stderr=np.concatenate((np.where(np.isinf(stderr), np.nan, stderr), np.full(more, np.nan))),
    )


def _middle(inside: Floats, part: _Interval) -> float:
    return float(inside[np.argmin(np.abs(inside - (1 / part.left + 1 / part.right) / 2))])


def _intervals(known: Mapping[float, float]) -> Iterator[_Interval]:
    cpus = sorted(known)
    x, y = 1 / np.array(cpus), 1 / np.array([known[c] for c in cpus])
    slope = (y[:-1] - y[1:]) / (x[:-1] - x[1:])
    before = np.append(y[0] / x[0], slope)  # cores never help more than so many times
    after = np.append(slope[1:], 0.0)  # and never hurt
    for i in range(len(cpus) - 1):
        yield _Interval(x[i], x[i + 1], y[i], y[i + 1], before[i], after[i])
