"""Search for the best power cap of a running job: caps are tried one after the other while it trains.

No side effects: the caller passes the time and the meter reading, and sets the cap that the search returns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from wattline.errors import ConfigError, did_you_mean
from wattline.models.cost import energy_time_cost

_STEP_W = 25.0
_WORSE_IN_ROW = 2  # caps in a row that are clearly worse than the best end the search
_CLEARLY_WORSE = 1.02  # times the cost of the best


class CapMeasurement(NamedTuple):
    """Measurement under one cap: joules of all GPUs of the job, seconds of its slowest rank."""

    cap_w: float
    steps: float
    seconds: float
    joules: float

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return self.seconds / self.steps

    @property
    def step_j(self) -> float:
        """Joules per step."""
        return self.joules / self.steps


@dataclass(frozen=True)
class Aim:
    """Criterion of the best cap: `energy`, `time`, `cost:0.5` (η of Zeus' cost), `slowdown:1.1`, `watts:200`.

    `slowdown` is the least energy among the caps under which a step takes at most that many times as long as
    under the largest; `watts` the fastest cap at which each GPU draws at most that much.
    """

    by: Literal["energy", "time", "cost", "slowdown", "watts"] = "cost"
    amount: float = 0.5

    def __post_init__(self) -> None:
        bounds = {"cost": (0.0, 1.0), "slowdown": (1.0, math.inf), "watts": (1.0, math.inf)}
        low, high = bounds.get(self.by, (-math.inf, math.inf))
        if not low <= self.amount <= high:
            raise ConfigError(f"{self.by} is {self.amount:g}, expected {low:g} to {high:g}")

    @classmethod
    def parse(cls, text: str) -> Aim:
        """Parse an aim such as `cost:0.5`."""
        known = ("energy", "time", "cost", "slowdown", "watts")
        match = re.fullmatch(r"(\w+)(?:[:=](.+))?", text.strip())
        if match is None or match[1] not in known:
            word = match[1] if match else text
            raise ConfigError(
                f"aim is {text!r}, expected energy, time, cost:ETA, slowdown:FACTOR or watts:W",
                did_you_mean(word, known),
            )
        default = {"cost": 0.5, "slowdown": 1.1, "watts": math.nan}.get(match[1], 0.0)
        try:
            amount = default if match[2] is None else float(match[2])
        except ValueError:
            amount = math.nan
        if math.isnan(amount):
            example = 200.0 if math.isnan(default) else default
            raise ConfigError(
                f"aim is {text!r}, expected a number after the colon, such as {match[1]}:{example:g}"
            )
        return cls(match[1], amount)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.by if self.by in ("energy", "time") else f"{self.by}:{self.amount:g}"

    def costs(self, measurements: Sequence[CapMeasurement], max_w: float, gpus: int) -> list[float]:
        """Return the cost of each cap; inf: it is not allowed. *max_w* is the largest cap of a GPU."""
        energy = np.array([one.step_j for one in measurements])
        time_s = np.array([one.step_s for one in measurements])
        if self.by == "energy":
            costs = energy
        elif self.by == "time":
            costs = time_s
        elif self.by == "cost":
            costs = energy_time_cost(energy, time_s, eta=self.amount, max_w=max_w * gpus)
        elif self.by == "slowdown":
            uncapped_s = time_s[int(np.argmax([one.cap_w for one in measurements]))]
            costs = np.where(time_s <= self.amount * uncapped_s, energy, np.inf)
        else:
            costs = np.where(energy / time_s <= self.amount * gpus, time_s, np.inf)
        return [float(cost) for cost in costs]


def find_best(
    measurements: Sequence[CapMeasurement], aim: Aim, max_w: float, gpus: int = 1
) -> CapMeasurement:
    """Return the best measurement by *aim*.

    Of equal ones the largest cap is taken; if none meets the aim, the cap with the least power.
    """
    costs = aim.costs(measurements, max_w, gpus)
    if not any(map(math.isfinite, costs)):
        return min(measurements, key=lambda one: one.joules / one.seconds)
    return measurements[min(range(len(costs)), key=lambda k: (costs[k], -measurements[k].cap_w))]


def list_caps(low_w: float, high_w: float, step_w: float = _STEP_W) -> tuple[float, ...]:
    """Return the caps to try, from *high_w* down to *low_w*."""
    count = math.floor((high_w - low_w) / step_w + 1e-9)
    caps = [high_w - k * step_w for k in range(count + 1)]
    return tuple(caps if caps[-1] - low_w < 1e-9 else [*caps, low_w])


@dataclass(frozen=True)
class WindowLength:
    """Length of a window: *wait* and *warmup* steps, then *steps* measured ones, or *seconds* if longer."""

    wait: int = 1
    warmup: int = 10
    steps: int = 40
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.wait < 0 or self.warmup < 0 or self.steps < 1 or not 0 <= self.seconds < math.inf:
            raise ConfigError(f"the window is {self}, expected steps of at least 1, and no number below 0")

    def shorter(self) -> WindowLength:
        """Return a window of half the length."""
        return WindowLength(self.wait, self.warmup // 2, max(1, self.steps // 2), self.seconds / 2)


Combine = Callable[[float, float], tuple[float, float]]
"""Combines seconds and joules of this rank to those of the job: the maximum, and the sum."""


def _single_rank(seconds: float, joules: float) -> tuple[float, float]:
    return seconds, joules


@dataclass
class CapSearch:
    """Tries caps from the largest down. Call `record_step` after each step; *cap_w* is the cap to set.

    The end of an epoch cuts a window off: it restarts in the next epoch, shorter if no window fitted in this
    one. Lower caps are left out once two in a row are clearly worse than the best. The measurements of
    several ranks are combined by *combine*, which all of them call at the same step.
    """

    caps_w: tuple[float, ...]
    aim: Aim
    length: WindowLength = field(default_factory=WindowLength)
    gpus: int = 1
    combine: Combine = _single_rank
    measurements: list[CapMeasurement] = field(default_factory=list)
    _current: int = 0  # index of the cap that is tried
    _steps_until_start: int = 0
    _steps: int = -1  # in the window; -1 = it has not started
    _start: tuple[float, float] = (0.0, 0.0)  # seconds and joules
    _has_fitted: bool = False  # a window was completed in this epoch

    def __post_init__(self) -> None:
        self.restart_window()

    @property
    def is_done(self) -> bool:
        """True if the best cap is known."""
        return self._current >= len(self.caps_w)

    @property
    def cap_w(self) -> float:
        """The cap to set now: the one that is tried, or the best."""
        return self.best.cap_w if self.is_done else self.caps_w[self._current]

    @property
    def best(self) -> CapMeasurement:
        """The best measurement so far."""
        return find_best(self.measurements, self.aim, self.caps_w[0], self.gpus)

    @property
    def is_measuring(self) -> bool:
        """True if a window has started, so that nothing else should take time."""
        return not self.is_done and self._steps >= 0

    @property
    def needs_reading(self) -> bool:
        """True if the next step needs time and energy, since a window may start or end."""
        if self.is_done:
            return False
        if self._steps < 0:
            return self._steps_until_start <= 1
        return self._steps + 1 >= self.length.steps

    def record_step(self, now_s: float, energy_j: float) -> bool:
        """Record a step; return True if the cap to set has changed.

        If `needs_reading` was False, time and energy are ignored.
        """
        if self.is_done:
            return False
        if self._steps < 0:
            self._steps_until_start -= 1
            if self._steps_until_start <= 0:
                self._start, self._steps = (now_s, energy_j), 0
            return False
        self._steps += 1
        if self._steps < self.length.steps or now_s - self._start[0] < self.length.seconds:
            return False
        seconds, joules = self.combine(now_s - self._start[0], energy_j - self._start[1])
        self.measurements.append(CapMeasurement(self.caps_w[self._current], self._steps, seconds, joules))
        self._has_fitted = True
        self._current = len(self.caps_w) if self._is_hopeless() else self._current + 1
        self.restart_window()
        return True

    def finish(self) -> None:
        """End the search with the measurements so far."""
        self._current = len(self.caps_w)

    def end_epoch(self) -> None:
        """Record the end of an epoch: a started window restarts in the next."""
        if not self.is_done and not self._has_fitted:
            self.length = self.length.shorter()
        self._has_fitted = False
        self.restart_window()

    def restart_window(self) -> None:
        """Restart the window under the same cap."""
        self._steps_until_start, self._steps = self.length.wait + self.length.warmup, -1

    def _is_hopeless(self) -> bool:
        """Return True if the last caps are clearly worse than the best."""
        costs = self.aim.costs(self.measurements, self.caps_w[0], self.gpus)
        least = min(costs)
        last = costs[-_WORSE_IN_ROW:]
        return (
            len(costs) > _WORSE_IN_ROW
            and math.isfinite(least)
            and all(cost > _CLEARLY_WORSE * least for cost in last)
        )
