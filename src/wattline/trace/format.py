"""The definition of a trace format: how text is recognised, split into rows and mapped to columns."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from wattline.core.table import Ints
from wattline.trace.builder import Draft
from wattline.trace.field_parser import Chunk
from wattline.trace.file_source import ArchiveMember
from wattline.trace.read_counts import ReadCounts
from wattline.trace.row_reader import Report

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class Head:
    """The beginning of a text, for recognisers."""

    text: str

    @classmethod
    def of(cls, data: bytes) -> Head:
        """Return the beginning of *data*; bytes that are no text show as replacement characters."""
        return cls(data[:_HEAD_BYTES].decode("utf-8-sig", errors="replace"))

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """Up to twenty lines that are not blank."""
        lines = self.text.replace("\r", "\n").split("\n")
        return tuple(line for line in lines if line.strip())[:20]

    def fields(self, delimiter: str) -> tuple[str, ...]:
        """Return the fields of the first line, split at *delimiter*."""
        try:
            row = next(csv.reader(self.lines[:1], delimiter=delimiter), [])
        except csv.Error:
            row = []
        return tuple(field.strip() for field in row)


@dataclass(frozen=True)
class Format:
    """One trace format. *wall_clock*: its times are dates or epochs, not seconds from a start.

    *join* joins rows with one id that are runs of one job; None: an id that appears twice is an error.
    *timed_on* is the GPU kind for which its durations were predicted; "": they were recorded, on any kind.
    """

    name: str
    says: str
    recognises: Callable[[Head], bool]
    chunks: Callable[[ArchiveMember, Report], Iterator[Chunk]]
    draft: Callable[[Chunk], Draft]
    wall_clock: bool = False
    join: Callable[[Draft, Ints], tuple[Draft, Ints, ReadCounts]] | None = None
    timed_on: str = ""


def header_has(*names: str) -> Callable[[Head], bool]:
    """Return a recogniser of comma-separated text with all these columns in its header."""
    return lambda head: set(names) <= set(head.fields(","))
