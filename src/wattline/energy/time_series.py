"""Step functions of time, and the CSV files they are read from: limits in watts, and prices."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from wattline.errors import ConfigError

KWH_J = 3.6e6


@dataclass(frozen=True)
class TimeSeries:
    """Step function of time: each value holds from its time until the next.

    The first value also holds before its time, the last one for ever. With *every_s* the series repeats with
    that period, and the last value holds before the first: a daily tariff has `every_s=86400`.
    """

    at_s: tuple[float, ...]
    values: tuple[float, ...]
    every_s: float = math.inf
    name: str = ""

    def __post_init__(self) -> None:
        if not self.at_s or len(self.at_s) != len(self.values):
            counts = f"{len(self.at_s)} times and {len(self.values)} values"
            raise ConfigError(f"a series has {counts}, expected equal numbers of at least 1")
        if any(later <= earlier for earlier, later in pairwise(self.at_s)):
            raise ConfigError("the times of a series must increase")
        if math.isfinite(self.every_s) and (self.at_s[0] < 0 or self.every_s <= self.at_s[-1]):
            ends = f"{self.at_s[0]:g} to {self.at_s[-1]:g} s"
            raise ConfigError(f"a series from {ends} cannot repeat every {self.every_s:g} s")

    def at(self, now_s: float) -> tuple[float, float]:
        """Return the value at *now_s*, and the time of the next one."""
        periods = math.floor(now_s / self.every_s) if math.isfinite(self.every_s) else 0
        period_start_s = periods * self.every_s if periods else 0.0
        row = (
            periods * len(self.at_s)
            + int(np.searchsorted(self.at_s, now_s - period_start_s, side="right"))
            - 1
        )
        while self._start_s(row + 1) <= now_s:  # sums of times are rounded
            row += 1
        first = row == -1 and math.isinf(self.every_s)
        return self.values[0 if first else row % len(self.at_s)], self._start_s(row + 1)

    def _start_s(self, row: int) -> float:
        """Return the time of a row; row numbers continue through the periods."""
        periods, row = divmod(row, len(self.at_s))
        return self.at_s[row] + (periods * self.every_s if periods else 0.0)

    def __repr__(self) -> str:
        again = f", every_s={self.every_s:g}" if math.isfinite(self.every_s) else ""
        return f"Series({self.name or f'{len(self.at_s)} rows'}{again})"


_PER_KWH = {"price": "spend", "carbon": "emit"}  # column per kWh: column with the limit per hour
_COLUMN_SETS = ({"watts"}, {"kwh"}, *({cost, rate} for cost, rate in _PER_KWH.items()))


def read_series(path: str | Path, every_s: float = math.inf) -> TimeSeries:
    """Read watts over time from a CSV file.

    Columns: `time_s` and one of `watts`; `kwh` (until the next row; the last row only ends the one before);
    `price` per kWh and `spend` per hour; `carbon` per kWh and `emit` per hour.
    """
    lines, columns = _read_columns(str(path), _COLUMN_SETS)
    at_s = columns["time_s"]
    if "kwh" in columns:
        if len(at_s) < 2:
            raise _error(str(path), lines[0], "one row of kwh, expected a second row that ends its interval")
        at_s = at_s[:-1]
    return _build_series(path, at_s, _convert_to_watts(str(path), lines, columns), every_s)


def read_prices(path: str | Path, every_s: float = math.inf) -> TimeSeries:
    """Read prices per kWh over time from a CSV file with the columns `time_s` and `price`.

    A column `carbon` may be beside them, see `read_carbon`.
    """
    _, columns = _read_columns(str(path), ({"price"}, {"price", "carbon"}))
    return _build_series(path, columns["time_s"], columns["price"], every_s)


def read_carbon(path: str | Path, every_s: float = math.inf) -> TimeSeries | None:
    """Read g CO₂ per kWh over time from the column `carbon` of a CSV file; None: it has no such column."""
    _, columns = _read_columns(str(path), ({"carbon"}, {"price"}, {"price", "carbon"}))
    if "carbon" not in columns:
        return None
    return _build_series(path, columns["time_s"], columns["carbon"], every_s)


def _build_series(
    path: str | Path, at_s: Sequence[float], values: Sequence[float], every_s: float
) -> TimeSeries:
    try:
        return TimeSeries(tuple(at_s), tuple(values), every_s, Path(path).name)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from None


def _read_columns(path: str, column_sets: Sequence[set[str]]) -> tuple[list[int], dict[str, list[float]]]:
    """Return the line of each row and the columns: `time_s` and those of one of *column_sets*."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            names = [name.strip() for name in table.fieldnames or ()]
            _check_names(path, names, column_sets)
            table.fieldnames = names
            lines, rows = [], []
            for row in table:
                if None in row:
                    cells = len(names) + len(row[None])
                    raise _error(path, table.line_num, f"{cells} cells, expected {len(names)}")
                lines.append(table.line_num)
                rows.append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not rows:
        raise ConfigError(f"{path}: has no rows, expected at least one")
    columns = {
        name: [_parse_number(path, line, name, row[name]) for line, row in zip(lines, rows, strict=True)]
        for name in names
    }
    at_s = columns["time_s"]
    for line, (earlier, later) in zip(lines[1:], pairwise(at_s), strict=True):
        if later <= earlier:
            raise _error(path, line, f"time_s is {later:g}, expected above {earlier:g}, the row before")
    return lines, columns


def _error(path: str, line: int, problem: str) -> ConfigError:
    return ConfigError(f"{path}:{line}: {problem}")


def _convert_to_watts(path: str, lines: Sequence[int], columns: Mapping[str, Sequence[float]]) -> list[float]:
    if "watts" in columns:
        return list(columns["watts"])
    if "kwh" in columns:
        lengths_s = (later - earlier for earlier, later in pairwise(columns["time_s"]))
        return [kwh * KWH_J / s for kwh, s in zip(columns["kwh"], lengths_s, strict=False)]
    per_kwh = next(name for name in _PER_KWH if name in columns)
    for line, value in zip(lines, columns[per_kwh], strict=True):
        if value == 0:
            raise _error(path, line, f"{per_kwh} is 0, expected above 0")
    spent = columns[_PER_KWH[per_kwh]]
    return [1000.0 * s / p for s, p in zip(spent, columns[per_kwh], strict=True)]


def _check_names(path: str, names: Sequence[str], column_sets: Sequence[set[str]]) -> None:
    if sorted(names) not in [sorted({"time_s", *columns}) for columns in column_sets]:
        raise _error(
            path,
            1,
            f"the columns are {', '.join(names) or 'none'}, expected time_s and "
            + (" or ".join(" and ".join(sorted(columns, reverse=True)) for columns in column_sets)),
        )


def _parse_number(path: str, line: int, name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (value < 0 and name != "time_s"):
        least = "" if name == "time_s" else ", at least 0"
        raise _error(path, line, f"{name} is {text!r}, expected a number{least}")
    return value
