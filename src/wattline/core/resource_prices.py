"""Prices of resources at one decision, of a policy that allocates by prices."""

from __future__ import annotations

import math
from dataclasses import dataclass

ENERGY = "energy"
"""Name of the price of a joule; all other prices are for a GPU-hour."""

WATTS, KWH, BUDGETS = "watts", "kwh", "budgets"
"""Names of the price that budgets add: of power, of energy, of both."""

_DIGITS = 6  # that are logged: prices are compared and drawn, never computed with


@dataclass(frozen=True, slots=True)
class ResourcePrices:
    """Price of each resource now, in the unit of the policy's aim: seconds of completion time, or money.

    A kind of GPU has the price of a GPU-hour. `watts`, `kwh` or `budgets` is what budgets add for the energy
    of a GPU-hour at full power, so that the highest of these names the bottleneck. `energy` is the price of a
    joule, budgets included. *bound* is the most that any allocation is worth per second at these prices.
    """

    names: tuple[str, ...]
    values: tuple[float, ...]
    bound: float = math.nan  # nan: unknown

    @classmethod
    def of(cls, prices: dict[str, float], bound: float = math.nan) -> ResourcePrices:
        """Return *prices* with as many digits as the log has."""
        values = tuple(_round_digits(value) for value in prices.values())
        return cls(tuple(prices), values, _round_digits(bound))

    def as_dict(self) -> dict[str, float]:
        """Return the prices by name."""
        return dict(zip(self.names, self.values, strict=True))


def _round_digits(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else math.nan
