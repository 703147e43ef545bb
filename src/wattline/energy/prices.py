"""Energy prices: money per kWh, flat or over time, with the PUE of the site."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattline.core.table import Floats
from wattline.energy.time_series import KWH_J, TimeSeries, read_carbon, read_prices
from wattline.errors import ConfigError
from wattline.units import parse_seconds

_FALLBACK_PER_KWH = 0.2  # where energy is free


@dataclass(frozen=True)
class Price:
    """Money per kWh over time; each kWh of the cluster costs *pue* kWh at the meter of the site.

    `Price.flat(0.17, pue=1.33)`, `Price(read_prices("tariff.csv"))`. The currency is up to the user.
    """

    per_kwh: TimeSeries
    pue: float = 1.0

    def __post_init__(self) -> None:
        if not all(0 <= price < math.inf for price in self.per_kwh.values):
            raise ConfigError(f"a price must be at least 0 and finite, got {min(self.per_kwh.values)}")
        if not 1 <= self.pue < math.inf:
            raise ConfigError(f"pue must be at least 1 and finite, got {self.pue}")

    @classmethod
    def flat(cls, per_kwh: float, pue: float = 1.0) -> Price:
        """Return a constant price."""
        return cls(TimeSeries((0.0,), (float(per_kwh),)), pue)

    @property
    def is_variable(self) -> bool:
        """True if the price changes over time."""
        return len(set(self.per_kwh.values)) > 1

    @property
    def mean_per_j(self) -> float:
        """Mean money per joule; above 0 even for free energy, because time is weighed against it."""
        values = self.per_kwh.values
        return (sum(values) / len(values) or _FALLBACK_PER_KWH) * self.pue / KWH_J

    def at(self, now_s: float) -> tuple[float, float]:
        """Return the money per joule at *now_s*, and the time of the next change."""
        per_kwh, until_s = self.per_kwh.at(now_s)
        return per_kwh * self.pue / KWH_J, until_s if self.is_variable else math.inf

    def price_steps(self, from_s: float, until_s: float) -> tuple[Floats, Floats]:
        """Return the price changes from *from_s* to *until_s*, both included, and the prices between them."""
        at_s, prices = [from_s], []
        while at_s[-1] < until_s:
            price, next_s = self.at(at_s[-1])
            prices.append(price)
            at_s.append(min(next_s, until_s))
        return np.array(at_s), np.array(prices)

    def cost(self, at_s: Floats, energy_j: Floats) -> float:
        """Return the cost of energy with running totals *energy_j* at the times *at_s*, linear between."""
        if len(at_s) < 2:
            return 0.0
        edges_s, prices = self.price_steps(float(at_s[0]), float(at_s[-1]))
        return float(np.diff(np.interp(edges_s, at_s, energy_j)) @ prices)

    def as_dict(self) -> dict[str, Any]:
        """Return the price as data for the header of a log."""
        every_s = self.per_kwh.every_s
        return {
            "per_kwh": list(self.per_kwh.values),
            "at_s": list(self.per_kwh.at_s),
            "every_s": every_s if math.isfinite(every_s) else None,
            "pue": self.pue,
            "name": self.per_kwh.name,
        }

    @classmethod
    def from_dict(cls, words: Mapping[str, Any]) -> Price:
        """Return the price that `as_dict` wrote."""
        every_s = math.inf if words["every_s"] is None else float(words["every_s"])
        at_s, values = (tuple(map(float, words[name])) for name in ("at_s", "per_kwh"))
        return cls(TimeSeries(at_s, values, every_s, str(words["name"])), float(words["pue"]))

    def __repr__(self) -> str:
        value = f"{self.per_kwh.values[0]:g}" if len(self.per_kwh.values) == 1 else repr(self.per_kwh)
        return f"Price({value}, pue={self.pue:g})"

    def __str__(self) -> str:
        flat = f"{self.per_kwh.values[0]:g}"
        value = self.per_kwh.name or (f"{len(self.per_kwh.values)} prices" if self.is_variable else flat)
        return f"{value} per kWh" + (f", PUE {self.pue:g}" if self.pue != 1 else "")


_FILE = re.compile(r"(.+\.csv)(?:/(.+))?", re.IGNORECASE)


def parse_price(text: str, pue: float = 1.0) -> Price:
    """Parse a price per kWh: `0.17`, `prices.csv`, or periodically `prices.csv/1d`."""
    path, value = _parse_value(
        text, "price", "money per kWh such as 0.17, or a CSV file such as prices.csv/1d"
    )
    return Price.flat(value, pue) if path is None else Price(read_prices(path, value), pue)


def parse_carbon(text: str, pue: float = 1.0) -> Price:
    """Parse the CO₂ of electricity in g per kWh: `380`, `carbon.csv`, or periodically `carbon.csv/1d`.

    The result is a `Price` in grams.
    """
    path, value = _parse_value(
        text, "carbon", "g CO₂ per kWh such as 380, or a CSV file such as carbon.csv/1d"
    )
    if path is None:
        return Price.flat(value, pue)
    series = read_carbon(path, value)
    if series is None:
        raise ConfigError(f"{path}: has no column carbon, expected g CO₂ per kWh in one")
    return Price(series, pue)


def read_carbon_beside_prices(text: str, pue: float = 1.0) -> Price | None:
    """Return the CO₂ in the column `carbon` of the file of a price, as `parse_price` takes it; None: none."""
    path, value = _parse_value(text, "price", "money per kWh")
    series = None if path is None else read_carbon(path, value)
    return None if series is None else Price(series, pue)


def _parse_value(text: str, name: str, expected: str) -> tuple[str | None, float]:
    """Return a file and its period, or None and a number."""
    file = _FILE.fullmatch(text.strip())
    try:
        if file is None:
            return None, float(text)
        return file[1], math.inf if file[2] is None else parse_seconds(file[2])
    except ValueError:
        raise ConfigError(f"{name} {text!r}: expected {expected}") from None
