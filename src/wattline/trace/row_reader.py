"""Where do rows begin and end: text cut into chunks of columns, each row with its true line.

Chunks keep the memory flat: only one of them exists as Python strings at a time.
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
from wattline.trace.file_source import Member

Report = Callable[[TraceError], None]
"""What happens with a bad row: raised, or noted and the row dropped."""

_ROWS = 1 << 10  # so few that a chunk stays in the processor's cache: larger ones take twice the time


def delimited(
    member: Member, report: Report, delimiter: str = ",", names: Sequence[str] | None = None
) -> Iterator[Chunk]:
    """The rows of separated values; *names* of the columns, by default those of the first row."""
    rows = csv.reader(_text(member, report), delimiter=delimiter)
    # Only a quoted field can go on in the next line.
    yield from _chunks(member.label, rows, _lines_of if b'"' in member.data else _one_each, names)


def split_lines(
    member: Member,
    report: Report,
    split: Callable[[str], list[str]],
    names: Sequence[str] | None = None,
) -> Iterator[Chunk]:
    """The rows of a text in which one line is one row and quotes mean nothing; no fields: no row."""
    rows = (split(line.rstrip("\r\n")) for line in _text(member, report))
    yield from _chunks(member.label, rows, _one_each, names)


def _text(member: Member, report: Report) -> io.TextIOWrapper:
    """The text as a stream; lines that are not UTF-8 are reported and left blank."""
    data = member.data
    if not data.isascii():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            data = b"\n".join(_decodable(member, report))
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")


def _decodable(member: Member, report: Report) -> Iterator[bytes]:
    for number, line in enumerate(member.data.split(b"\n"), 1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as problem:
            byte = line[problem.start]
            report(TraceError(member.label, number, f"byte 0x{byte:02x} is not UTF-8 text"))
            line = b""
        yield line


def _one_each(rows: list[list[str]]) -> Ints:
    return np.ones(len(rows), dtype=np.int64)


def _lines_of(rows: list[list[str]]) -> Ints:
    """How many lines each row takes."""
    texts = ("".join(row) for row in rows)
    return np.array([1 + t.count("\n") + t.count("\r") - t.count("\r\n") for t in texts], dtype=np.int64)


def _chunks(
    label: str,
    rows: Iterator[list[str]],
    lines_of: Callable[[list[list[str]]], Ints],
    names: Sequence[str] | None,
) -> Iterator[Chunk]:
    line, first = 1, 0
    while block := _taken(label, rows, lines_of, line):
        spans = lines_of(block)
        lines = line + np.cumsum(spans) - spans
        line += int(spans.sum())
        if min(map(len, block)) < 2:
            full = [i for i, row in enumerate(block) if _says_something(row)]
            block, lines = [block[i] for i in full], lines[full]
        if names is None and block:
            names = _header(label, block.pop(0), int(lines[0]))
            lines = lines[1:]
        if block and names is not None:
            yield _chunk(label, first, lines, block, names)
            first += len(block)


def _taken(
    label: str, rows: Iterator[list[str]], lines_of: Callable[[list[list[str]]], Ints], line: int
) -> list[list[str]]:
    block: list[list[str]] = []
    try:
        block.extend(islice(rows, _ROWS))
    except csv.Error as problem:
        line += int(lines_of(block).sum())  # of the rows that came before the one that failed
        raise TraceError(label, line, f"cannot be split into fields ({problem})") from None
    return block


def _says_something(row: list[str]) -> bool:
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
