"""Selection of the core counts to measure, and interpolation of the speed at the others.

Optimistic profiling (Synergy, OSDI'22): only cores are varied, with all memory available, and only a few
core counts are measured. Both ends come first, then intervals are split; an interval is left alone if the
speeds at its ends differ by less than *threshold*.

Seconds per sample over 1/cores are a convex, rising curve: cores work in parallel, max(fixed + core_s/c, …),
see `models.demand`. So a point between two others lies below the chord between them and above the lines
through their neighbours, and the interval in which these bounds are furthest apart is split first. Outside
the measured range more cores never reduce the speed, and never increase it more than in proportion.

*Deviates:* Synergy takes intervals in order; here the order matters if *points* run out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats
from wattline.errors import ConfigError
from wattline.measurement.points import Profile
from wattline.models.demand import DemandModel

MEMORY_SHARES = tuple(tenth / 10 for tenth in range(10))
"""Shares of the data set in memory for which speeds are derived; the full data set is measured."""

_BEND_WEIGHT = 0.7  # of the lower bound in the estimate: most curves have one sharp bend


class _Interval(NamedTuple):
    """Two neighbouring measured core counts as x = 1/cores, with bounds on the time between them."""

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
        """Return the lower bound: the higher neighbours' line, limited by the lower end and the chord."""
        from_left = self.left_s + self.left_slope * (x - self.left)
        from_right = self.right_s + self.right_slope * (x - self.right)
        lines_s = np.maximum(np.maximum(from_left, from_right), min(self.left_s, self.right_s))
        return np.minimum(lines_s, self.chord_s(x))

    def uncertainty(self, x: Floats) -> Floats:
        """Return the relative distance of the bounds."""
        return np.asarray(self.chord_s(x) / self.least_s(x) - 1.0)


@dataclass(frozen=True)
class CoreSweep:
    """Selects core counts of *grid* to measure one after the other, at most *points* of them."""

    grid: tuple[float, ...]
    threshold: float = 0.1
    points: int = 8

    def __post_init__(self) -> None:
        if not self.grid or min(self.grid) <= 0 or list(self.grid) != sorted(set(self.grid)):
            raise ConfigError(f"grid is {self.grid}, expected increasing numbers of cores above 0")
        if not 0 <= self.threshold < 1:
            raise ConfigError(f"threshold is {self.threshold}, expected a share from 0 to below 1")
        if self.points < 2:
            raise ConfigError(f"points is {self.points}, expected at least 2")

    def __call__(
        self, measure: Callable[[float], float], known: Mapping[float, float] | None = None
    ) -> dict[float, float]:
        """Measure until done; return samples per second by cores, in measured order, *known* ones first."""
        speeds = dict(known or {})
        while (cpus := self.next_cpus(speeds)) is not None:
            speeds[cpus] = measure(cpus)
        return speeds

    def next_cpus(self, known: Mapping[float, float]) -> float | None:
        """Return the next core count to measure given the *known* speeds; None: enough is known."""
        ends = (self.grid[-1], self.grid[0])
        for end in ends:
            if end not in known:
                return end
        if len(known) >= self.points:
            return None
        best: tuple[float, float] | None = None
        for part in _intervals(known):
            inside = np.array([c for c in self.grid if 1 / part.left < c < 1 / part.right])
            difference = part.left_s / part.right_s - 1.0
            if not len(inside) or abs(difference) < self.threshold:
                continue
            # The second term prefers the widest interval if the bounds leave no uncertainty.
            value = float(part.uncertainty(1 / inside).max()) + 0.1 * float(np.log1p(abs(difference)))
            if best is None or value > best[0]:
                best = value, _middle(inside, part)
        return None if best is None else best[1]

    def is_flat(self, known: Mapping[float, float]) -> bool:
        """Return True if the fewest cores are nearly as fast as the most."""
        fastest = known[self.grid[-1]]
        return len(self.grid) > 1 and fastest / known[self.grid[0]] - 1.0 < self.threshold


class SpeedPoint(NamedTuple):
    """Measured speed with *cpus* cores: samples per second, their standard error, and the number of steps."""

    cpus: float
    samples_s: float
    stderr: float
    steps: int


def interpolate_speed(known: Mapping[float, float], cpus: Floats) -> Floats:
    """Return samples per second at *cpus*: measured, or interpolated between the bounds of the interval."""
    cpus = np.asarray(cpus, np.float64)
    fewest, most = min(known), max(known)
    speed = np.where(cpus < fewest, known[fewest] * cpus / fewest, known[most])
    for part in _intervals(known):
        inside = (1 / cpus <= part.left) & (1 / cpus >= part.right)
        x = 1 / cpus[inside]
        speed[inside] = 1.0 / (_BEND_WEIGHT * part.least_s(x) + (1.0 - _BEND_WEIGHT) * part.chord_s(x))
    for c, samples_s in known.items():
        speed[cpus == c] = samples_s
    return speed


def build_profile(
    points: Sequence[SpeedPoint],
    *,
    model: str,
    gpu: str,
    gpus: int,
    batch: float,
    demand: DemandModel | None,
    read_mib_s: float = np.nan,
) -> Profile:
    """Return the table of the measured points, and with *demand* of points derived for less memory.

    A measured row has a standard error and no memory limit, a derived one has a limit and no error.
    """
    cpus, samples_s, stderr, steps = (np.array(column) for column in zip(*sorted(points), strict=True))
    levels_gib = [share * demand.dataset_gib for share in MEMORY_SHARES] if demand else []
    derived = [
        demand.speed_with_memory(samples_s / gpus, np.full(len(cpus), gib)) * gpus
        for gib in levels_gib
        if demand
    ]
    derived_rows = len(derived) * len(cpus)
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
        n=np.concatenate((np.maximum(steps, 1), np.ones(derived_rows))),
        stderr=np.concatenate((np.where(np.isinf(stderr), np.nan, stderr), np.full(derived_rows, np.nan))),
    )


def _middle(inside: Floats, part: _Interval) -> float:
    return float(inside[np.argmin(np.abs(inside - (1 / part.left + 1 / part.right) / 2))])


def _intervals(known: Mapping[float, float]) -> Iterator[_Interval]:
    cpus = sorted(known)
    x, y = 1 / np.array(cpus), 1 / np.array([known[c] for c in cpus])
    slope = (y[:-1] - y[1:]) / (x[:-1] - x[1:])
    before = np.append(y[0] / x[0], slope)  # speed never grows more than in proportion
    after = np.append(slope[1:], 0.0)  # and never falls
    for i in range(len(cpus) - 1):
        yield _Interval(x[i], x[i + 1], y[i], y[i + 1], before[i], after[i])
