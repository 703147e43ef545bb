"""Energy budgets of the cluster and of teams."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal, NamedTuple

from wattline.core.snapshot import Snapshot
from wattline.energy.time_series import KWH_J, TimeSeries, read_series
from wattline.errors import ConfigError
from wattline.units import parse_seconds

DAY_S = 86400.0


class Allowance(NamedTuple):
    """Power and energy that a budget allows at one moment."""

    watts: float  # allowed from now on
    joules: float  # allowed until *until_s*
    until_s: float  # time of the next change; inf: none


@dataclass(frozen=True)
class Budget:
    """Amount with its unit, for the whole cluster or for one *team*.

    `Budget.joules(5e9, horizon_s=86400)`, `Budget.watts(40_000)`, `Budget.kwh_per_day(300, team="vc1")`,
    `Budget.series(read_series("tariff.csv"))`, `Budget.eta(0.5)`. The budget of the cluster counts all that
    it draws, including idle GPUs and nodes; that of a team what its jobs draw. Joules are spread evenly over
    the rest of the horizon; joules left after the horizon may still be used. Unused kWh of a day are lost.
    *eta* is not an amount: it selects a plan between the cheapest (0) and the fastest (1).
    """

    amount: float
    unit: Literal["joules", "watts", "kwh_per_day", "series", "eta"]
    team: str = ""
    horizon_s: float = math.inf
    over_time: TimeSeries | None = None

    def __post_init__(self) -> None:
        if not self.amount >= 0:
            raise ConfigError(f"a budget must be at least 0 {self.unit}, got {self.amount}")
        if self.unit == "eta" and self.amount > 1:
            raise ConfigError(f"eta must be from 0 to 1, got {self.amount}")
        if not self.horizon_s > 0:
            raise ConfigError(f"horizon_s must be above 0, got {self.horizon_s}")
        if (self.unit == "series") != (self.over_time is not None):
            raise ConfigError(
                f"over_time is required for the unit series and only for it, got unit {self.unit}"
            )

    @classmethod
    def joules(cls, amount: float, *, horizon_s: float = math.inf, team: str = "") -> Budget:
        """Return a budget of *amount* joules in total, spread over *horizon_s*."""
        return cls(amount, "joules", team, horizon_s)

    @classmethod
    def watts(cls, amount: float, *, team: str = "") -> Budget:
        """Return a limit of *amount* watts at any time."""
        return cls(amount, "watts", team)

    @classmethod
    def kwh_per_day(cls, amount: float, *, team: str = "") -> Budget:
        """Return a budget of *amount* kWh per day, counted from the start of the run."""
        return cls(amount, "kwh_per_day", team)

    @classmethod
    def series(cls, over_time: TimeSeries, *, team: str = "") -> Budget:
        """Return a limit of watts that changes over time."""
        return cls(max(over_time.values), "series", team, over_time=over_time)

    @classmethod
    def eta(cls, amount: float, *, team: str = "") -> Budget:
        """Return a trade-off between the cheapest plan (0) and the fastest (1)."""
        return cls(amount, "eta", team)

    def __repr__(self) -> str:
        of = f", team={self.team!r}" if self.team else ""
        within = f", horizon_s={self.horizon_s:g}" if math.isfinite(self.horizon_s) else ""
        amount = repr(self.over_time) if self.over_time else f"{self.amount:g}"
        return f"Budget.{self.unit}({amount}{within}{of})"

    def __str__(self) -> str:
        """Return the budget as `parse_budget` reads it: `12kW`, `vision:300kWh/day`."""
        before = f"{self.team}:" if self.team else ""
        if self.over_time is not None:
            return f"{before}{self.over_time}"
        if self.unit == "eta":
            return f"{before}eta={_format_exact(self.amount)}"
        if self.unit == "kwh_per_day":
            return f"{before}{_format_amount(self.amount, (('Wh', 1e-3), ('kWh', 1.0), ('MWh', 1e3)))}/day"
        if self.unit == "watts":
            return before + _format_amount(self.amount, tuple(_WATTS.items()))
        within = f"/{_format_exact(self.horizon_s)}s" if math.isfinite(self.horizon_s) else ""
        return before + _format_amount(self.amount, tuple(_JOULES.items())) + within

    def meter_column(self, snapshot: Snapshot) -> int:
        """Return the column of `MeterReadings.energy_j` that counts for this budget."""
        if not self.team:
            return 0
        names = snapshot.jobs.team.names
        return 1 + (names.index(self.team) if self.team in names else len(names))

    def allowance(self, snapshot: Snapshot) -> Allowance:
        """Return the allowance from now on, after the energy metered so far."""
        now_s = snapshot.now_s
        if self.unit in ("watts", "eta"):
            return Allowance(self.amount if self.unit == "watts" else math.inf, math.inf, math.inf)
        if self.over_time is not None:
            watts, until_s = self.over_time.at(now_s)
            return Allowance(watts, math.inf, until_s)
        since_s, until_s, allowed_j = -math.inf, self.horizon_s, self.amount
        if self.unit == "kwh_per_day":
            since_s = math.floor(now_s / DAY_S) * DAY_S
            until_s, allowed_j = since_s + DAY_S, self.amount * KWH_J
        left_j = allowed_j - snapshot.meter.used_j(self.meter_column(snapshot), since_s)
        if now_s < until_s < math.inf:
            return Allowance(left_j / (until_s - now_s), left_j, until_s)
        return Allowance(math.inf if left_j > 0 else 0.0, left_j, math.inf)

    @property
    def is_power(self) -> bool:
        """True if it limits the power at any time, and not the energy over a time."""
        return self.unit in ("watts", "series")

    @property
    def max_w(self) -> float:
        """Largest power that the budget ever allows."""
        return self.amount if self.is_power else math.inf

    def mean_w(self, now: Allowance) -> float:
        """Return the largest permanent draw that leaves something for jobs in the long run."""
        if self.unit == "kwh_per_day":  # a job may run for a part of each day
            return self.amount * KWH_J / DAY_S
        return now.watts if self.unit == "joules" and math.isfinite(now.until_s) else math.inf


_AMOUNT = re.compile(r"([-+0-9.eE]+)\s*(J|kJ|MJ|GJ|Wh|kWh|MWh|W|kW|MW)\s*(?:/\s*(.+))?")
_FILE = re.compile(r"(.+\.csv)(?:/(.+))?", re.IGNORECASE)
_JOULES = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "GJ": 1e9, "Wh": 3600.0, "kWh": 3.6e6, "MWh": 3.6e9}
_WATTS = {"W": 1.0, "kW": 1e3, "MW": 1e6}


def _format_amount(amount: float, units: Sequence[tuple[str, float]]) -> str:
    """Return the amount in the unit that writes it shortest, without an exponent."""
    texts = [(_format_exact(amount / unit), name) for name, unit in units if amount / unit * unit == amount]
    number, unit_name = min(texts, key=lambda text: len(text[0]))
    return number + unit_name


def _format_exact(value: float) -> str:
    return f"{Decimal(repr(value)).normalize():f}"


def parse_budget(text: str) -> Budget:
    """Parse `12kW`, `300kWh/day`, `5GJ`, `2MWh/7d`, `eta=0.5` or `tariff.csv`.

    A prefix `TEAM:` makes it the budget of one team. A file may repeat periodically: `tariff.csv/1d`.
    """
    whole = _FILE.fullmatch(text.strip())
    team, colon, value = text.rpartition(":")
    if whole is not None and Path(whole[1]).is_file():  # a path may contain colons
        team, colon, value = "", "", text
    if colon and not team:
        raise ConfigError(f"budget {text!r}: the team before the colon is empty, expected TEAM:BUDGET")
    file = _FILE.fullmatch(value.strip())
    try:
        if file is None:
            return _parse_amount(value.strip(), team)
        every_s = _parse_period(file[2])
    except ConfigError as error:
        raise ConfigError(f"budget {text!r}: {error.message}", error.hint) from None
    return Budget.series(read_series(file[1], every_s), team=team)


def _parse_amount(text: str, team: str) -> Budget:
    """Parse a budget without its team and without a file."""
    eta = re.fullmatch(r"eta\s*=\s*(.+)", text)
    match = _AMOUNT.fullmatch(text)
    try:
        amount = float(eta[1] if eta else match[1] if match else "nan")
    except ValueError:
        amount = math.nan
    if not amount >= 0 or (match is not None and match[2] in _WATTS and match[3]):
        raise ConfigError(
            "expected an amount such as 12kW, 300kWh/day, 5GJ, 2MWh/7d or eta=0.5, or a CSV file",
            hint="for one team: vc1:12kW",
        )
    if match is None:
        return Budget.eta(amount, team=team)
    if match[2] in _WATTS:
        return Budget.watts(amount * _WATTS[match[2]], team=team)
    joules, over = amount * _JOULES[match[2]], None if match[3] is None else match[3].strip()
    if over in ("day", "d"):
        return Budget.kwh_per_day(joules / KWH_J, team=team)
    if over in ("1d", "24h"):
        raise ConfigError(
            f"/{over} is ambiguous: every day, or the first {over} only",
            hint=f"every day: {match[1]}{match[2]}/day; in all: {match[1]}{match[2]}/86400s",
        )
    return Budget.joules(joules, horizon_s=_parse_period(over), team=team)


def _parse_period(text: str | None) -> float:
    """Parse a duration above 0; None: inf."""
    if text is None:
        return math.inf
    try:
        seconds = parse_seconds(text.strip())
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigError(f"{text!r} is not a duration above 0, expected one such as 7d")
    return seconds
