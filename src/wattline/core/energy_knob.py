"""The knob with which a policy trades energy for job completion time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from wattline.errors import ConfigError

_LINEAR_STEPS = 10
_LOG_FACTOR = 4.0
_LOG_STEPS = (-5, 6)  # of `_LOG_FACTOR`, below and above the first value


@dataclass(frozen=True)
class EnergyKnob:
    """Name and range of such a knob; a policy declares it as its class attribute `ENERGY_KNOB`.

    At *fastest* energy does not count, at *cheapest* it counts most. On the scale `log` one of the two is 0
    and the other may be inf; a search begins at *start*. A *secondary* knob belongs to a stage that only
    refines the plan of others: where another policy has a knob, that one is turned.
    """

    name: str
    fastest: float
    cheapest: float
    scale: Literal["linear", "log"] = "linear"
    start: float = math.nan
    unit: str = ""
    secondary: bool = False

    def __post_init__(self) -> None:
        if self.fastest == self.cheapest:
            raise ConfigError(f"{self.name}: fastest and cheapest are both {self.fastest:g}")
        if self.scale == "linear" and not (math.isfinite(self.fastest) and math.isfinite(self.cheapest)):
            raise ConfigError(f"{self.name}: a linear scale needs two finite ends")
        if self.scale == "log" and not 0 < self.start < math.inf:
            raise ConfigError(f"{self.name}: a log scale needs a start above 0, got {self.start}")
        if self.scale == "log" and min(self.fastest, self.cheapest) != 0:
            raise ConfigError(f"{self.name}: a log scale needs an end at 0")

    @property
    def grid(self) -> tuple[float, ...]:
        """Values from end to end, ascending; on the scale `log` around *start*, and 0."""
        if self.scale == "linear":
            low, high = sorted((self.fastest, self.cheapest))
            return tuple(low + (high - low) * step / _LINEAR_STEPS for step in range(_LINEAR_STEPS + 1))
        high = max(self.fastest, self.cheapest)
        steps = (self.start * _LOG_FACTOR**step for step in range(_LOG_STEPS[0], _LOG_STEPS[1] + 1))
        return (0.0, *(value for value in steps if value <= high))

    def find_middle(self, low: float, high: float) -> float:
        """Return the value between two others on this knob's scale."""
        if self.scale == "linear":
            return (low + high) / 2
        return math.sqrt(low * high) if low > 0 else high / _LOG_FACTOR**2
