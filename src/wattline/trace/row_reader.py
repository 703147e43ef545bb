"""Split text into chunks of columns, each row with its line number.

Only one chunk at a time exists as Python strings, so memory stays constant.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np

from wattline.core.table import Ints
from wattline.errors import TraceError
from wattline.trace.field_parser import Chunk
from wattline.trace.file_source import ArchiveMember

Report = Callable[[TraceError], None]
"""Called with the error of a bad row: raises it, or records it so that the row is dropped."""

_ROWS = 1 << 10  # so few that a chunk stays in the processor's cache: larger ones take twice the time


def delimited(
    member: ArchiveMember, report: Report, delimiter: str = ",", names: Sequence[str] | None = None
) -> Iterator[Chunk]:
    """Yield chunks of separated values; *names* of the columns, by default those of the first row."""
    rows = csv.reader(_text(member, report), delimiter=delimiter)
    # Only a quoted field can go on in the next line.
    yield from _chunks(member.label, rows, _count_lines if b'"' in member.data else _count_one_line, names)


def split_lines(
    member: ArchiveMember,
    report: Report,
    split: Callable[[str], list[str]],
    names: Sequence[str] | None = None,
) -> Iterator[Chunk]:
    """Yield chunks of a text with one row per line and without quoting; a line without fields is no row."""
    rows = (split(line.rstrip("\r\n")) for line in _text(member, report))
    yield from _chunks(member.label, rows, _count_one_line, names)


def parsed_lines(
    member: ArchiveMember, report: Report, parse: Callable[[str], list[str]], names: Sequence[str]
) -> Iterator[Chunk]:
    """Yield chunks of a text with one row per line; *parse* raises `ValueError` with what is wrong."""
    numbered = ((n, line) for n, line in enumerate(_text(member, report), 1) if line.strip())
    first = 0
    while block := list(islice(numbered, _ROWS)):
        rows: list[list[str]] = []
        problems: dict[int, str] = {}
        for row, (_, line) in enumerate(block):
            try:
                rows.append(parse(line))
            except ValueError as problem:
                problems[row] = str(problem)
                rows.append([""] * len(names))
        lines = np.array([number for number, _ in block], dtype=np.int64)
        texts: dict[str, Sequence[str]] = dict(zip(names, zip(*rows, strict=True), strict=True))
        yield Chunk(member.label, first, lines, texts, problems)
        first += len(block)


def _text(member: ArchiveMember, report: Report) -> io.TextIOWrapper:
    """Return the text as a stream; report lines that are not UTF-8 and leave them blank."""
    data = member.data
    if not data.isascii():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            data = b"\n".join(_decodable(member, report))
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")


def _decodable(member: ArchiveMember, report: Report) -> Iterator[bytes]:
    for number, line in enumerate(member.data.split(b"\n"), 1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as problem:
            byte = line[problem.start]
            report(TraceError(member.label, number, f"byte 0x{byte:02x} is not UTF-8 text"))
            line = b""
        yield line


def _count_one_line(rows: list[list[str]]) -> Ints:
    return np.ones(len(rows), dtype=np.int64)


def _count_lines(rows: list[list[str]]) -> Ints:
    """Return the number of lines of each row."""
    texts = ("".join(row) for row in rows)
    return np.array([1 + t.count("\n") + t.count("\r") - t.count("\r\n") for t in texts], dtype=np.int64)


def _chunks(
    label: str,
    rows: Iterator[list[str]],
    lines_of: Callable[[list[list[str]]], Ints],
    names: Sequence[str] | None,
) -> Iterator[Chunk]:
    line, first = 1, 0
    while block := _take_block(label, rows, lines_of, line):
        spans = lines_of(block)
        lines = line + np.cumsum(spans) - spans
        line += int(spans.sum())
        if min(map(len, block)) < 2:
            full = [i for i, row in enumerate(block) if _has_content(row)]
            block, lines = [block[i] for i in full], lines[full]
        if names is None and block:
            names = _header(label, block.pop(0), int(lines[0]))
            lines = lines[1:]
        if block and names is not None:
            yield _chunk(label, first, lines, block, names)
            first += len(block)


def _take_block(
    label: str, rows: Iterator[list[str]], lines_of: Callable[[list[list[str]]], Ints], line: int
) -> list[list[str]]:
    block: list[list[str]] = []
    try:
        block.extend(islice(rows, _ROWS))
    except csv.Error as problem:
        line += int(lines_of(block).sum())  # of the rows that came before the one that failed
        raise TraceError(label, line, f"cannot be split into fields ({problem})") from None
    return block


def _has_content(row: list[str]) -> bool:
    return len(row) > 1 or (len(row) == 1 and row[0].strip() != "")


def _header(label: str, row: list[str], line: int) -> list[str]:
    names = [name.strip() for name in row]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TraceError(label, line, f"the header names the column {twice!r} twice")
    return names


def _chunk(label: str, first: int, lines: Ints, rows: list[list[str]], names: Sequence[str]) -> Chunk:
    width, problems = len(names), {}
    if set(map(len, rows)) != {width}:
        problems = {
            i: f"has {len(row)} fields, expected {width} ({', '.join(names)})"
            for i, row in enumerate(rows)
            if len(row) != width
        }
        rows = [[""] * width if i in problems else row for i, row in enumerate(rows)]
    texts: dict[str, Sequence[str]] = dict(zip(names, zip(*rows, strict=True), strict=True))
    return Chunk(label, first, lines, texts, problems)
