"""Mapping of a table's columns: as given with `--columns`, else guessed from names and values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from wattline.errors import ConfigError, TraceError, did_you_mean
from wattline.trace.clock_parser import parse_clock, parse_limit
from wattline.trace.column_names import (
    NEEDED,
    SPANS,
    TARGETS,
    TIMES,
    UNITS_S,
    find_targets,
    split_unit,
)
from wattline.trace.field_parser import parse_moment

_EXAMPLE = "--columns submit=arrival_s,duration=service_sec,gpus=gpu_count"
_EMPTY = frozenset(("", "none", "null", "nan", "nat", "n/a", "na", "unknown", "-"))
RELATIVE, DATES = "relative", "dates"
_EPOCH_UNITS = {"ns": (5e17, 1e-9), "us": (5e14, 1e-6), "ms": (5e11, 1e-3), "s": (5e8, 1.0)}
"""Clocks that count since 1970: the least number, which is a day in 1985, and their unit in seconds."""


@dataclass(frozen=True)
class ColumnMapping:
    """Columns of a table by what they hold; *units_s* are the seconds of a unit of those with times.

    A number of GPUs may be the product of columns: `gpus=nodes*gpus_per_node`.
    """

    columns: Mapping[str, str]
    units_s: Mapping[str, float] = field(default_factory=dict)
    dates: frozenset[str] = frozenset()  # times that are dates; the others are numbers
    wall_clock: bool = False  # times count since 1970, or are dates

    def has(self, target: str) -> bool:
        """Return whether a column holds *target*."""
        return target in self.columns

    def __str__(self) -> str:
        names = {1e-3: "ms", 1e-6: "us", 1e-9: "ns", 60.0: "min", 3600.0: "h", 86_400.0: "d"}
        units = {target: names[unit] for target, unit in self.units_s.items() if unit in names}
        pairs = self.columns.items()
        return ",".join(f"{t}={c}" + (f":{units[t]}" if t in units else "") for t, c in pairs)


def parse_columns(text: str) -> dict[str, str]:
    """Parse `submit=arrival_s,gpus=gpu_count`: columns by what they hold."""
    given: dict[str, str] = {}
    for part in text.split(","):
        target, equals, column = (word.strip() for word in part.partition("="))
        if not equals or not target or not column:
            raise ConfigError(f"--columns: cannot read {part!r}, expected NAME=COLUMN", _EXAMPLE)
        if target not in TARGETS:
            near = did_you_mean(target, TARGETS)
            expected = f"expected one of {', '.join(TARGETS)}"
            raise ConfigError(f"--columns: unknown name {target!r}, {expected}", near or _EXAMPLE)
        if target in given:
            raise ConfigError(f"--columns: {target} is given twice, expected one column")
        given[target] = column
    return given


def resolve_columns(
    label: str, names: Sequence[str], rows: Sequence[Sequence[str]], given: Mapping[str, str]
) -> ColumnMapping:
    """Return the mapping of a table with columns *names* that begins with *rows*.

    Raise `TraceError` if a needed column is missing or could be one of several.
    """
    table = {name: [row[i] for row in rows if i < len(row)] for i, name in enumerate(names)}
    columns, units = _check_given(label, table, given)
    for target in TARGETS:
        if target not in columns:
            guessed = _guess_column(label, target, table, columns)
            if guessed:
                columns[target] = guessed
    _check_complete(label, columns, names)
    columns = {target: columns[target] for target in TARGETS if target in columns}
    for target in set(columns) & {*TIMES, *SPANS} - set(units):
        unit_s = split_unit(columns[target])[1]
        units[target] = 1.0 if unit_s is None else unit_s
    clocks = _find_clocks(label, columns, table)
    for target, clock in clocks.items():
        if clock in _EPOCH_UNITS and units[target] == 1.0:
            units[target] = _EPOCH_UNITS[clock][1]
    dates = frozenset(target for target, clock in clocks.items() if clock == DATES)
    return ColumnMapping(columns, units, dates, clocks.get("submit", RELATIVE) != RELATIVE)


def is_complete(columns: Mapping[str, str]) -> bool:
    """Return whether these columns are enough for jobs."""
    return all(t in columns for t in NEEDED) and ("duration" in columns or {"start", "end"} <= set(columns))


def _check_given(
    label: str, table: Mapping[str, list[str]], given: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, float]]:
    """Return the columns that the user named, and their units, as in `duration=service:min`."""
    columns, units = {}, {}
    for target, text in given.items():
        column, _, unit = text.rpartition(":")
        if text not in table and column and unit in UNITS_S and target in (*TIMES, *SPANS):
            units[target] = UNITS_S[unit]
            text = column
        for name in text.split("*") if target == "gpus" and text not in table else [text]:
            if name.strip() not in table:
                near = did_you_mean(name, table)
                problem = f"--columns {target}={text}: there is no column {name.strip()!r}"
                raise TraceError(label, 1, problem, near or f"the columns are: {', '.join(table)}")
        columns[target] = text
    return columns, units


def _guess_column(label: str, target: str, table: Mapping[str, list[str]], taken: Mapping[str, str]) -> str:
    """Return the column for *target* by name and values; empty: there is none."""
    found = [
        name
        for name, values in table.items()
        if name not in taken.values() and target in find_targets(name) and _fits(target, values)
    ]
    if len(found) > 1:
        exact = [name for name in found if split_unit(name)[0] == target]
        found = exact if len(exact) == 1 else found
    if len(found) > 1 and target in (*NEEDED, "duration", "start", "end", "time_limit"):
        hint = f"choose one, as in --columns {target}={found[0]}"
        raise TraceError(label, 1, f"{target} could be any of the columns {', '.join(found)}", hint)
    return found[0] if found else ""


def _fits(target: str, values: Sequence[str]) -> bool:
    """Return whether most of *values* can be those of *target*."""
    if target in TIMES:
        return _most(values, lambda value: not math.isnan(parse_moment(value)))
    if target == "time_limit":
        return _most(values, lambda value: parse_limit(value) != -1.0)
    if target in SPANS:
        return _most(values, lambda value: not math.isnan(parse_clock(value)))
    if target in ("gpus", "priority"):
        return _most(values, _is_number)
    return target != "kind" or not _list_known(values) or not _most(values, _is_number)


def _list_known(values: Sequence[str]) -> list[str]:
    return [value.strip() for value in values if value.strip().casefold() not in _EMPTY]


def _most(values: Sequence[str], is_good: Callable[[str], bool]) -> bool:
    """Return whether more than half of the known values are good; a bad one is found when it is read."""
    known = _list_known(values)
    return not known or 2 * sum(map(is_good, known)) > len(known)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d*)?([eE][+-]?\d+)?", text) is not None


def _check_complete(label: str, columns: Mapping[str, str], names: Sequence[str]) -> None:
    if is_complete(columns):
        return
    missing = [target for target in NEEDED if target not in columns]
    if "duration" not in columns and not {"start", "end"} <= set(columns):
        missing.append("duration (or start and end)")
    problem = f"no column is known to hold {', '.join(missing)}; the columns are: {', '.join(names)}"
    raise TraceError(label, 1, problem, f"name them, as in {_EXAMPLE}")


def _find_clocks(label: str, columns: Mapping[str, str], table: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the clock of each time: relative, dates, or the unit of a count since 1970."""
    clocks: dict[str, str] = {}
    for target in TIMES:
        known = _list_known(table.get(columns.get(target, ""), ()))
        if known and not _most(known, _is_number):
            clocks[target] = DATES
        elif known:
            least = min(abs(float(value)) for value in known if _is_number(value))
            units = (unit for unit, (bound, _) in _EPOCH_UNITS.items() if least > bound)
            clocks[target] = next(units, RELATIVE)
    relative = [target for target, clock in clocks.items() if clock == RELATIVE]
    if relative and len(relative) < len(clocks):
        others = ", ".join(f"{t}={columns[t]}" for t in clocks if t not in relative)
        mine = ", ".join(f"{t}={columns[t]}" for t in relative)
        problem = f"the times {mine} count from another start than {others}, expected one clock"
        raise TraceError(label, 1, problem, "name columns that have the same clock with --columns")
    return clocks
