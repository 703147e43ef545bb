"""Which power cap is best for the job that runs: caps are tried one after the other while it trains.

Pure: whoever trains says what time it is and what the meter reads, and is told which cap to set.
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
_WORSE = 2  # caps in a row that are clearly worse than the best: lower ones are no better
_CLEARLY = 1.02  # times the best


class Tried(NamedTuple):
    """What was measured under one cap: of all GPUs of the job, and of the slowest of its ranks."""

    cap_w: float
    steps: float
    seconds: float
    joules: float

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.seconds / self.steps

    @property
    def step_j(self) -> float:
        """Joules of a step."""
        return self.joules / self.steps


@dataclass(frozen=True)
class Aim:
    """What makes a cap the best: `energy`, `time`, `cost:0.5` (η of Zeus' cost), `slowdown:1.1`, `watts:200`.

    `slowdown` is the least energy of those under which a step takes at most so many times as long as without
    a cap; `watts` the fastest that draw at most so much on each GPU.
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
        """An aim from its text."""
        known = ("energy", "time", "cost", "slowdown", "watts")
        match = re.fullmatch(r"(\w+)(?:[:=](.+))?", text.strip())
        if match is None or match[1] not in known:
            word = match[1] if match else text
            raise ConfigError(
                f"aim {text!r}: expected energy, time, cost:ETA, slowdown:FACTOR or watts:W",
                did_you_mean(word, known),
            )
        usual = {"cost": 0.5, "slowdown": 1.1, "watts": math.nan}.get(match[1], 0.0)
        try:
            amount = usual if match[2] is None else float(match[2])
        except ValueError:
            amount = math.nan
        if math.isnan(amount):
            raise ConfigError(f"aim {text!r}: expected a number behind the colon")
        return cls(match[1], amount)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.by if self.by in ("energy", "time") else f"{self.by}:{self.amount:g}"

    def costs(self, tried: Sequence[Tried], max_w: float, gpus: int) -> list[float]:
        """What each way costs; inf: it is out of the question. *max_w* is the largest cap of a GPU."""
        energy = np.array([one.step_j for one in tried])
        time_s = np.array([one.step_s for one in tried])
        if self.by == "energy":
            found = energy
        elif self.by == "time":
            found = time_s
        elif self.by == "cost":
            found = energy_time_cost(energy, time_s, eta=self.amount, max_w=max_w * gpus)
        elif self.by == "slowdown":
            free_s = time_s[int(np.argmax([one.cap_w for one in tried]))]
            found = np.where(time_s <= self.amount * free_s, energy, np.inf)
        else:
            found = np.where(energy / time_s <= self.amount * gpus, time_s, np.inf)
        return [float(cost) for cost in found]


def best(tried: Sequence[Tried], aim: Aim, max_w: float, gpus: int = 1) -> Tried:
    """The best of what was *tried* by *aim*; of equals that with the larger cap, and if nothing meets the aim
    the one that draws least."""
    costs = aim.costs(tried, max_w, gpus)
    if not any(map(math.isfinite, costs)):
        return min(tried, key=lambda one: one.joules / one.seconds)
    return tried[min(range(len(tried)), key=lambda k: (costs[k], -tried[k].cap_w))]


def caps_between(low_w: float, high_w: float, step_w: float = _STEP_W) -> tuple[float, ...]:
    """Caps to try, from the largest down, never below the least."""
    count = math.floor((high_w - low_w) / step_w + 1e-9)
    caps = [high_w - k * step_w for k in range(count + 1)]
    return tuple(caps if caps[-1] - low_w < 1e-9 else [*caps, low_w])


@dataclass(frozen=True)
class Length:
    """How long a cap is tried: *wait* and *warmup* steps, then *steps* that count, or *seconds* if longer."""

    wait: int = 1
    warmup: int = 10
    steps: int = 40
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.wait < 0 or self.warmup < 0 or self.steps < 1 or not 0 <= self.seconds < math.inf:
            raise ConfigError(f"a window is {self}, expected at least one step, and nothing below 0")

    def shorter(self) -> Length:
        """Half of it."""
        return Length(self.wait, self.warmup // 2, max(1, self.steps // 2), self.seconds / 2)


Combine = Callable[[float, float], tuple[float, float]]
"""Seconds and joules of this rank to those of the job: the longest, and the sum."""


def _alone(seconds: float, joules: float) -> tuple[float, float]:
    return seconds, joules


@dataclass
class Sweep:
    """Caps on trial, from the largest down. After each step tell `stepped`; *cap_w* is what should be set.

    An epoch that ends cuts a window off: it begins anew in the next one, and shorter if not a single window
    fitted. Lower caps are left out once two in a row are clearly worse than the best. What many ranks measure
    is combined by *combine*, which all of them call at the same step.
    """

    caps_w: tuple[float, ...]
    aim: Aim
    length: Length = field(default_factory=Length)
    gpus: int = 1
    combine: Combine = _alone
    tried: list[Tried] = field(default_factory=list)
    _at: int = 0  # the cap on trial
    _left: int = 0  # steps until the window begins
    _steps: int = -1  # of the window; -1: it has not begun
    _since: tuple[float, float] = (0.0, 0.0)
    _fitted: bool = False  # a window in this epoch

    def __post_init__(self) -> None:
        self.begin_anew()

    @property
    def done(self) -> bool:
        """Whether the best is known."""
        return self._at >= len(self.caps_w)

    @property
    def cap_w(self) -> float:
        """The cap that should be set now: the one on trial, or the best."""
        return self.found.cap_w if self.done else self.caps_w[self._at]

    @property
    def found(self) -> Tried:
        """The best so far."""
        return best(self.tried, self.aim, self.caps_w[0], self.gpus)

    @property
    def measuring(self) -> bool:
        """Whether a window has begun: nothing else should take time now."""
        return not self.done and self._steps >= 0

    @property
    def wants_reading(self) -> bool:
        """Whether the next step needs the time and the meter: where a window may begin or end."""
        if self.done:
            return False
        if self._steps < 0:
            return self._left <= 1
        return self._steps + 1 >= self.length.steps

    def stepped(self, now_s: float, energy_j: float) -> bool:
        """A step was done; answers whether another cap should be set.

        Where `wants_reading` was False the time and the reading may be anything.
        """
        if self.done:
            return False
        if self._steps < 0:
            self._left -= 1
            if self._left <= 0:
                self._since, self._steps = (now_s, energy_j), 0
            return False
        self._steps += 1
        if self._steps < self.length.steps or now_s - self._since[0] < self.length.seconds:
            return False
        seconds, joules = self.combine(now_s - self._since[0], energy_j - self._since[1])
        self.tried.append(Tried(self.caps_w[self._at], self._steps, seconds, joules))
        self._fitted = True
        self._at = len(self.caps_w) if self._hopeless() else self._at + 1
        self.begin_anew()
        return True

    def end(self) -> None:
        """Try no more: what was tried is enough."""
        self._at = len(self.caps_w)

    def epoch_ended(self) -> None:
        """An epoch has ended: a window that had begun begins anew in the next."""
        if not self.done and not self._fitted:
            self.length = self.length.shorter()
        self._fitted = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """Begin the window again, under the same cap."""
        self._left, self._steps = self.length.wait + self.length.warmup, -1

    def _hopeless(self) -> bool:
        """Whether lower caps cannot be better any more."""
        costs = self.aim.costs(self.tried, self.caps_w[0], self.gpus)
        least = min(costs)
        last = costs[-_WORSE:]
        return len(costs) > _WORSE and math.isfinite(least) and all(cost > _CLEARLY * least for cost in last)
