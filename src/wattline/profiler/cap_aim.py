"""Measurements under power caps, and the aims by which the best of them is chosen."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from wattline.errors import ConfigError, did_you_mean
from wattline.models.cost import energy_time_cost


class CapMeasurement(NamedTuple):
    """Measurement under one cap: joules of all GPUs of the job, seconds of its slowest rank."""

    cap_w: float
    steps: float
    seconds: float
    joules: float
    spoilt: bool = False  # disturbed, also when it was measured again

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
