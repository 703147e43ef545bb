"""The shapes in which `sacct` prints its table: separated by a delimiter, or in columns of fixed width.

`-P` separates with |, `-p` adds one at the end, `--delimiter` names another. Without them the columns have
fixed widths under a line of dashes. Nothing is quoted, and TRES lists contain commas, so that a
comma-separated row is put together again from its pieces.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattline.trace.format import Head

FIELDS = (
    *("JobID", "JobIDRaw", "Cluster", "User", "Account", "Partition", "QOS", "State", "Submit", "Eligible"),
    *("Start", "End", "Elapsed", "ElapsedRaw", "Timelimit", "TimelimitRaw", "NNodes", "AllocNodes"),
    *("ReqNodes", "NodeList", "ReqTRES", "AllocTRES", "ReqGRES", "AllocGRES", "Restarts", "JobName"),
    *("WorkDir", "SubmitLine", "Dependency", "Reservation", "ConsumedEnergy", "ConsumedEnergyRaw"),
)
"""The fields of `sacct` that are read."""

_DELIMITERS = "|,;\t^~!"
_DASHES = re.compile(r"-+(?: +-+)+ *")
_TRES_ITEM = re.compile(r"([\w/:.-]+)=\S*")
_GRES_ITEM = re.compile(r"(?:gres[:/])?\w+:[\w.:()/-]+")


@dataclass(frozen=True)
class SacctShape:
    """Names of the columns, and the split of a line into as many fields; [] for a line without data."""

    names: tuple[str, ...]
    split: Callable[[str], list[str]]


def find_shape(head: Head) -> SacctShape | None:
    """Return the shape of an export of `sacct`; None: it is none."""
    if not head.lines:
        return None
    header = head.lines[0]
    if len(head.lines) > 1 and _DASHES.fullmatch(head.lines[1]):
        return _find_fixed_width(header, head.lines[1])
    for delimiter in _DELIMITERS:
        names = [name.strip().strip('"') for name in header.split(delimiter)]
        if _is_sacct(names):
            return _separated(header, names, delimiter)
    return None


def _is_sacct(names: Sequence[str]) -> bool:
    if "JobID" not in names and "JobIDRaw" not in names:
        return False
    return "Submit" in names or {"JobName", "Partition", "State"} <= set(names)  # the latter by default


def _separated(header: str, names: list[str], delimiter: str) -> SacctShape:
    trailing = names[-1] == ""
    columns = tuple(names[:-1] if trailing else names)
    free = columns.index("SubmitLine") if "SubmitLine" in columns else -1

    def split(line: str) -> list[str]:
        if not line or line == header:
            return []
        whole = line.removesuffix(delimiter) if trailing else line
        fields = _split_quoted(whole) if delimiter == "," else whole.split(delimiter)
        if len(fields) <= len(columns):
            return fields
        if delimiter == ",":
            fields = _join_pieces(fields, columns)
        more = len(fields) - len(columns)
        if more > 0 and free >= 0:  # a delimiter in a command line is not escaped
            fields[free : free + more + 1] = [delimiter.join(fields[free : free + more + 1])]
        return fields

    return SacctShape(columns, split)


def _split_quoted(line: str) -> list[str]:
    """Split at commas; a program that passed the table on may have quoted fields."""
    if '"' in line:
        try:
            return next(csv.reader([line], strict=True))
        except csv.Error:
            pass
    return line.split(",")


def _join_pieces(pieces: list[str], columns: Sequence[str]) -> list[str]:
    """Join what belongs to one column: the items of a TRES or GRES list, and of a list of nodes."""
    row: list[str] = []
    at = 0
    for name in columns:
        end = min(at + 1, len(pieces))
        if name.endswith("TRES"):
            end = _find_tres_end(pieces, at)
        elif name.endswith("GRES"):
            while end < len(pieces) and pieces[at] and _GRES_ITEM.fullmatch(pieces[end]):
                end += 1
        elif name == "NodeList":
            while end < len(pieces) and _is_open(pieces[at:end]):
                end += 1
        row.append(",".join(pieces[at:end]))
        at = end
    return row + pieces[at:]


def _find_tres_end(pieces: Sequence[str], at: int) -> int:
    """Return the end of the list that begins *at*; a repeated name begins the list of the next column."""
    names: set[str] = set()
    end = at
    while end < len(pieces):
        match = _TRES_ITEM.fullmatch(pieces[end])
        if match is None or match[1] in names:
            break
        names.add(match[1])
        end += 1
    return max(end, min(at + 1, len(pieces)))


def _is_open(pieces: Sequence[str]) -> bool:
    text = "".join(pieces)
    return text.count("[") > text.count("]")


def _find_fixed_width(header: str, dashes: str) -> SacctShape | None:
    spans = [match.span() for match in re.finditer("-+", dashes)]
    names = tuple(_complete_name(field) for field in _cut(header, spans))
    if not _is_sacct(names):
        return None

    def split(line: str) -> list[str]:
        return [] if line in (header, dashes) or not line.strip() else _cut(line, spans)

    return SacctShape(names, split)


def _cut(line: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    if line.isascii():
        return [line[start:end].strip() for start, end in spans]
    data = line.encode()  # sacct pads to a number of bytes
    return [data[start:end].decode("utf-8", "replace").strip() for start, end in spans]


def _complete_name(name: str) -> str:
    """Return the field of which a narrow column shows only the beginning."""
    short = name.removesuffix("+")
    found = [field for field in FIELDS if field.startswith(short)]
    return name if name in FIELDS or len(found) != 1 or not short else found[0]
