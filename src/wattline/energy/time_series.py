"""Numbers over time: watts that may be drawn, from a table of watts, prices or grams of carbon; or prices."""

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
class Series:
    """Watts or prices over time: each holds from its moment until the next, the first before it, the last for
    ever.

    With *every_s* they come again and again, and the last holds before the first, too: a tariff of a day with
    `every_s=86400`.
    """

    at_s: tuple[float, ...]
    values: tuple[float, ...]
    every_s: float = math.inf
    name: str = ""

    def __post_init__(self) -> None:
        if not self.at_s or len(self.at_s) != len(self.values):
            counts = f"{len(self.at_s)} times and {len(self.values)} values"
            raise ConfigError(f"a series of {counts}, expected as many of each, at least one")
        if any(later <= earlier for earlier, later in pairwise(self.at_s)):
            raise ConfigError("the times of a series must rise")
        if math.isfinite(self.every_s) and (self.at_s[0] < 0 or self.every_s <= self.at_s[-1]):
            ends = f"{self.at_s[0]:g} to {self.at_s[-1]:g} s"
            raise ConfigError(f"a series of {ends} cannot come again every {self.every_s:g} s")

    def at(self, now_s: float) -> tuple[float, float]:
        """What holds at *now_s*, and until when."""
        periods = math.floor(now_s / self.every_s) if math.isfinite(self.every_s) else 0
        began_s = periods * self.every_s if periods else 0.0
        row = periods * len(self.at_s) + int(np.searchsorted(self.at_s, now_s - began_s, side="right")) - 1
        while self._begins_s(row + 1) <= now_s:  # a sum of times is rounded
            row += 1
        first = row == -1 and math.isinf(self.every_s)
        return self.values[0 if first else row % len(self.at_s)], self._begins_s(row + 1)

    def _begins_s(self, row: int) -> float:
        """When a row begins to hold; rows are counted on through the periods."""
        periods, row = divmod(row, len(self.at_s))
        return self.at_s[row] + (periods * self.every_s if periods else 0.0)

    def __repr__(self) -> str:
        again = f", every_s={self.every_s:g}" if math.isfinite(self.every_s) else ""
        return f"Series({self.name or f'{len(self.at_s)} rows'}{again})"


_PER_KWH = {"price": "spend", "carbon": "emit"}  # what a kWh costs, and how much of that an hour may
_WAYS = ({"watts"}, {"kwh"}, *({cost, rate} for cost, rate in _PER_KWH.items()))


def read_series(path: str | Path, every_s: float = math.inf) -> Series:
    """Watts over time from a CSV with the column `time_s` and one of these:

    `watts`; `kwh` (until the next row; the last row only ends the one before); `price` per kWh and `spend`
    per hour; `carbon` per kWh and `emit` per hour.
    """
    lines, columns = _read(str(path), _WAYS)
    at_s = columns["time_s"]
    if "kwh" in columns:
        if len(at_s) < 2:
            raise _wrong(str(path), lines[0], "one row of kwh, expected another that ends it")
        at_s = at_s[:-1]
    return _series(path, at_s, _watts(str(path), lines, columns), every_s)


def read_prices(path: str | Path, every_s: float = math.inf) -> Series:
    """What a kWh costs over time, from a CSV with the columns `time_s` and `price`."""
    _, columns = _read(str(path), ({"price"},))
    return _series(path, columns["time_s"], columns["price"], every_s)


def _series(path: str | Path, at_s: Sequence[float], values: Sequence[float], every_s: float) -> Series:
    try:
        return Series(tuple(at_s), tuple(values), every_s, Path(path).name)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from None


def _read(path: str, ways: Sequence[set[str]]) -> tuple[list[int], dict[str, list[float]]]:
    """The columns of a table, which are `time_s` and those of one of *ways*, and the lines of its rows."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            names = [name.strip() for name in table.fieldnames or ()]
            _check_names(path, names, ways)
            table.fieldnames = names
            lines, rows = [], []
            for row in table:
                if None in row:
                    cells = len(names) + len(row[None])
                    raise _wrong(path, table.line_num, f"{cells} cells, expected {len(names)}")
                lines.append(table.line_num)
                rows.append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not rows:
        raise ConfigError(f"{path}: has no rows, expected numbers over time")
    columns = {
        name: [_number(path, line, name, row[name]) for line, row in zip(lines, rows, strict=True)]
        for name in names
    }
    at_s = columns["time_s"]
    for line, (earlier, later) in zip(lines[1:], pairwise(at_s), strict=True):
        if later <= earlier:
            raise _wrong(path, line, f"time_s is {later:g}, expected above {earlier:g}, the row before")
    return lines, columns


def _wrong(path: str, line: int, problem: str) -> ConfigError:
    return ConfigError(f"{path}:{line}: {problem}")


def _watts(path: str, lines: Sequence[int], columns: Mapping[str, Sequence[float]]) -> list[float]:
    if "watts" in columns:
        return list(columns["watts"])
    if "kwh" in columns:
        lasts_s = (later - earlier for earlier, later in pairwise(columns["time_s"]))
        return [kwh * KWH_J / s for kwh, s in zip(columns["kwh"], lasts_s, strict=False)]
    per_kwh = next(name for name in _PER_KWH if name in columns)
    for line, value in zip(lines, columns[per_kwh], strict=True):
        if value == 0:
            raise _wrong(path, line, f"{per_kwh} is 0, expected above 0")
    spent = columns[_PER_KWH[per_kwh]]
    return [1000.0 * s / p for s, p in zip(spent, columns[per_kwh], strict=True)]


def _check_names(path: str, names: Sequence[str], ways: Sequence[set[str]]) -> None:
    if sorted(names) not in [sorted({"time_s", *way}) for way in ways]:
        raise _wrong(
            path,
            1,
            f"the columns are {', '.join(names) or 'none'}, expected time_s and "
            + (" or ".join(" and ".join(sorted(way, reverse=True)) for way in ways)),
        )


def _number(path: str, line: int, name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (value < 0 and name != "time_s"):
        least = "" if name == "time_s" else ", at least 0"
        raise _wrong(path, line, f"{name} is {text!r}, expected a number{least}")
    return value
