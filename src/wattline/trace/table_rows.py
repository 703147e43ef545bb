"""Rows of any table: separated values with a header, or one JSON object per line."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from wattline.errors import TraceError
from wattline.trace.field_parser import Chunk
from wattline.trace.file_source import ArchiveMember
from wattline.trace.format import Head
from wattline.trace.row_reader import Report, delimited, parsed_lines

_DELIMITERS = ",\t;|"


@dataclass(frozen=True)
class TableStart:
    """Columns and first rows of a table, and how to read all of it."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    chunks: Callable[[ArchiveMember, Report], Iterator[Chunk]]


def find_table(head: Head) -> TableStart | None:
    """Return the start of the table in a text; None: there is none."""
    if not head.lines:
        return None
    if head.lines[0].lstrip().startswith("{"):
        return _find_json_lines(head)
    for delimiter in sorted(_DELIMITERS, key=lambda d: -head.lines[0].count(d)):
        names = head.fields(delimiter)
        if len(names) > 1 and all(names) and len(set(names)) == len(names):
            rows = _split_lines(head.lines[1:], delimiter)
            return TableStart(names, rows, partial(delimited, delimiter=delimiter))
    return None


def _split_lines(lines: Sequence[str], delimiter: str) -> tuple[tuple[str, ...], ...]:
    try:
        return tuple(tuple(row) for row in csv.reader(lines, delimiter=delimiter))
    except csv.Error:
        return ()


def _find_json_lines(head: Head) -> TableStart | None:
    objects = []
    for line in head.lines:
        try:
            objects.append(_flatten(json.loads(line)))
        except (ValueError, RecursionError):
            continue  # the last line at hand may be cut off
    names = tuple(dict.fromkeys(name for entry in objects for name in entry))
    if len(names) < 2:
        return None
    rows = tuple(tuple(entry.get(name, "") for name in names) for entry in objects)

    def parse(line: str) -> list[str]:
        try:
            entry = _flatten(json.loads(line))
        except (ValueError, RecursionError):
            raise ValueError("is not a JSON object") from None
        return [entry.get(name, "") for name in names]

    return TableStart(names, rows, partial(parsed_lines, parse=parse, names=names))


def _flatten(entry: Any) -> dict[str, str]:
    """Return the values of a JSON object as words; those of an object inside it as `outer.inner`."""
    if not isinstance(entry, dict):
        raise ValueError("not an object")
    words: dict[str, str] = {}
    for name, value in entry.items():
        if isinstance(value, dict):
            words |= {f"{name}.{inner}": word for inner, word in _flatten(value).items()}
        else:
            words[name] = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    return words


def require_table(label: str, head: Head) -> TableStart:
    """Return the table in a text; raise `TraceError` if there is none."""
    table = find_table(head)
    if table is None:
        expected = "a header and separated values (comma, tab, ; or |), or one JSON object per line"
        raise TraceError(label, 1, f"the text is no table, expected {expected}")
    return table
