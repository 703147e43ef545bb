"""Any table of jobs: the columns are named with `--columns`, or guessed and shown.

Times are seconds from any start, numbers since 1970 or dates; durations are numbers in the unit that the
column's name ends with, or [D-]HH:MM:SS. Instead of a duration, start and end are enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.errors import TraceError
from wattline.trace.builder import Draft
from wattline.trace.column_mapping import ColumnMapping, resolve_columns
from wattline.trace.field_parser import NEVER_STARTED, NOT_ENDED, SHARED_GPU, WITHOUT_GPUS, Chunk
from wattline.trace.file_source import ArchiveMember
from wattline.trace.format import Format, Head
from wattline.trace.read_counts import ReadCounts
from wattline.trace.row_reader import Report
from wattline.trace.table_rows import find_table, require_table

_UNKNOWN = ("", "None", "null", "nan", "NaN", "NaT", "N/A", "NA", "Unknown", "unknown", "-")
_ROWS = 20  # to guess from
_LABELS = ("team", "user", "model", "status", "name", "partition", "qos", "nodes")


def find_columns(member: ArchiveMember, given: Mapping[str, str]) -> ColumnMapping:
    """Return the mapping of the table in *member*; raise `TraceError` if it is not complete."""
    table = require_table(member.label, Head.of(member.data))
    return resolve_columns(member.label, table.names, table.rows, given)


def build_table_format(mapping: ColumnMapping) -> Format:
    """Return the format of tables with this mapping."""

    def chunks(member: ArchiveMember, report: Report) -> Iterator[Chunk]:
        table = require_table(member.label, Head.of(member.data))
        used = [name for text in mapping.columns.values() for name in _split_product(text, table.names)]
        absent = [name for name in used if name not in table.names]
        if absent:
            columns = ", ".join(table.names)
            raise TraceError(
                member.label, 1, f"the column {absent[0]} is missing; the columns are: {columns}"
            )
        return table.chunks(member, report)

    draft = partial(_draft, mapping=mapping)
    join = _number_repeated_ids if "id" in mapping.guessed else None
    return replace(TABLE, chunks=chunks, draft=draft, wall_clock=mapping.wall_clock, join=join)


def _number_repeated_ids(draft: Draft, line: Ints) -> tuple[Draft, Ints, ReadCounts]:
    """Return *draft* with ids made unique: a column that was taken for ids may hold names."""
    if len(set(draft.id)) == len(draft):
        return draft, line, ReadCounts()
    seen: Counter[str] = Counter()
    ids = []
    for name in draft.id:
        seen[name] += 1
        ids.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    repeated = len(draft) - len(seen)
    if len(set(ids)) < len(ids):
        ids = [str(row) for row in range(len(draft))]
    counts = ReadCounts(repaired={"with an id that appears before, numbered": repeated})
    return replace(draft, id=ids), line, counts


def _recognises(head: Head) -> bool:
    table = find_table(head)
    if table is None:
        return False
    try:
        resolve_columns("", table.names, table.rows, {})
    except TraceError:
        return False
    return True


def _split_product(text: str, names: tuple[str, ...]) -> list[str]:
    return [text] if text in names else [name.strip() for name in text.split("*")]


def _draft(chunk: Chunk, mapping: ColumnMapping) -> Draft:
    columns = mapping.columns
    submit_s = _times_s(chunk, mapping, "submit", required=True)
    start_s, end_s = (_times_s(chunk, mapping, target) for target in ("start", "end"))
    if start_s is None and mapping.has("wait"):
        start_s = submit_s + mapping.units_s["wait"] * chunk.durations(columns["wait"], _UNKNOWN)
    elif start_s is not None:
        chunk.not_before(columns["start"], start_s, columns["submit"], submit_s)
    if mapping.has("end") and mapping.has("start"):
        chunk.not_before(columns["end"], end_s, columns["start"], start_s)
    gpus = _gpus(chunk, columns["gpus"])
    duration_s = _durations_s(chunk, mapping, start_s, end_s)
    words: dict[str, Any] = {target: chunk.labels(columns[target]) for target in _LABELS if target in columns}
    if end_s is None and start_s is not None:
        end_s = start_s + duration_s
    return Draft(
        id=chunk.ids(columns["id"]) if mapping.has("id") else chunk.numbered(),
        submit_s=submit_s,
        gpus=gpus,
        duration_s=duration_s,
        priority=chunk.numbers(columns["priority"], "a number", missing=dict.fromkeys(_UNKNOWN, 0.0))
        if mapping.has("priority")
        else None,
        gpu_kind=chunk.kinds(columns.get("kind", ""), (*_UNKNOWN, "any", "Any", "ANY")),
        start_s=start_s,
        end_s=end_s,
        time_limit_s=_limits_s(chunk, mapping),
        **words,
    )


def _times_s(chunk: Chunk, mapping: ColumnMapping, target: str, required: bool = False) -> Any:
    """Return a column of times; None without one."""
    if not mapping.has(target):
        return None
    column, missing = mapping.columns[target], () if required else _UNKNOWN
    if target in mapping.dates:
        return chunk.moments(column, missing)
    numbers = chunk.numbers(column, "a number of seconds", missing=dict.fromkeys(missing, np.nan))
    return mapping.units_s[target] * numbers


def _durations_s(
    chunk: Chunk, mapping: ColumnMapping, start_s: Floats | None, end_s: Floats | None
) -> Floats:
    if mapping.has("duration"):
        duration_s = chunk.durations(mapping.columns["duration"], _UNKNOWN, mapping.units_s["duration"])
        chunk.ignore(np.isnan(duration_s), "without a duration")
        return duration_s
    if start_s is None or end_s is None:
        raise AssertionError("a mapping has a duration, or start and end")
    chunk.ignore(np.isnan(start_s), NEVER_STARTED)
    chunk.ignore(np.isnan(end_s), NOT_ENDED)
    return end_s - start_s


def _gpus(chunk: Chunk, text: str) -> Ints:
    """Return numbers of GPUs; a fraction counts as a whole one."""
    expected, none = "a number of GPUs, at least 0", dict.fromkeys(_UNKNOWN, 0.0)
    factors = [
        chunk.numbers(name, expected, 0.0, 1e6, none) for name in _split_product(text, tuple(chunk.texts))
    ]
    gpus: Floats = np.prod(factors, axis=0)
    whole: Floats = np.ceil(gpus)
    chunk.ignore(gpus == 0, WITHOUT_GPUS)
    chunk.repair(gpus != whole, SHARED_GPU)
    return np.maximum(whole, 1.0).astype(np.int64)


def _limits_s(chunk: Chunk, mapping: ColumnMapping) -> Floats | None:
    if not mapping.has("time_limit"):
        return None
    return chunk.limits(mapping.columns["time_limit"], mapping.units_s["time_limit"])


def _chunks(member: ArchiveMember, report: Report) -> Iterator[Chunk]:
    return build_table_format(find_columns(member, {})).chunks(member, report)


def _draft_guessed(chunk: Chunk) -> Draft:
    rows = list(zip(*(words[:_ROWS] for words in chunk.texts.values()), strict=True))
    return _draft(chunk, resolve_columns(chunk.label, tuple(chunk.texts), rows, {}))


TABLE = Format(
    name="table",
    says="any table with a header, or JSON lines, with submission, GPUs, and duration or start and end",
    recognises=_recognises,
    chunks=_chunks,
    draft=_draft_guessed,
)
