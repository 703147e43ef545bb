"""Recorded outages of nodes: a table (node, down_s, up_s), or what `sacctmgr show event -P` prints."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattline.core.table import Bools, Floats, Labels
from wattline.errors import ConfigError, TraceError
from wattline.trace.column_names import normalize_name
from wattline.trace.field_parser import Chunk, parse_moment
from wattline.trace.file_source import open_trace_file
from wattline.trace.format import Head
from wattline.trace.read_counts import ReadCounts
from wattline.trace.table_rows import require_table

_COLUMNS = {
    "node": ("node", "nodename", "node_name", "host", "hostname", "machine"),
    "down": ("down", "down_s", "down_at", "timestart", "time_start", "start", "start_s", "start_time"),
    "up": ("up", "up_s", "up_at", "timeend", "time_end", "end", "end_s", "end_time"),
    "state": ("state",),
}
_STILL_DOWN = ("", "Unknown", "None", "inf")
_DRAIN = re.compile(r"drain", re.IGNORECASE)
_EPOCH_S = 5e8


@dataclass(frozen=True, eq=False)
class Outages:
    """Outages of nodes; *up_s* inf: still down. *wall_clock*: times count since 1970."""

    node: Labels
    down_s: Floats
    up_s: Floats
    wall_clock: bool
    counts: ReadCounts

    def match(
        self, names: Sequence[str], origin_s: float | None
    ) -> tuple[tuple[tuple[int, float, float], ...], str]:
        """Return (row, down_s, up_s) for nodes with these *names*, and how they were matched if not by name.

        *origin_s* is time 0 of the trace in seconds since 1970; None: the trace has no dates.
        """
        if self.wall_clock and origin_s is None:
            raise ConfigError(
                "the outages have dates, and the trace has only seconds from a start",
                "give the outages in seconds on the clock of the trace",
            )
        shift_s = origin_s if self.wall_clock and origin_s is not None else 0.0
        rows, how = self._match_names(names)
        row = [rows[name] for name in self.node.words()]
        times = zip(row, (self.down_s - shift_s).tolist(), (self.up_s - shift_s).tolist(), strict=True)
        return tuple(times), how

    def _match_names(self, names: Sequence[str]) -> tuple[dict[str, int], str]:
        known = {name: row for row, name in enumerate(names)}
        used = set(self.node.words())
        if used <= set(known):
            return known, ""
        found = used & set(known)
        if found or len(used) > len(known):
            absent = sorted(used - set(known), key=_natural)
            raise ConfigError(
                f"outages name the node {absent[0]!r}, expected nodes of the cluster: {_shorten(names)}",
                f"{len(used)} nodes have outages, and the cluster has {len(known)}",
            )
        ordered = sorted(used, key=_natural)
        how = f"outages name other nodes than the cluster; {_shorten(ordered)} stand for {_shorten(names)}"
        return {name: row for row, name in enumerate(ordered)}, how


def read_outages(path: str) -> Outages:
    """Read the outages in a file; those that only drain a node are left out, as they stop no job."""
    member = open_trace_file(path).members[0]
    table = require_table(member.label, Head.of(member.data))
    columns = _find_columns(member.label, table.names)
    parts = [_read_chunk(chunk, columns) for chunk in table.chunks(member, _raise)]
    if not parts:
        raise TraceError(path, None, "no outages: nothing follows the header")
    down_s = np.concatenate([part.down_s for part in parts])
    counts = sum((part.counts for part in parts), ReadCounts())
    node = Labels.of(word for part in parts for word in part.node.words())
    dated = {part.wall_clock for part in parts if len(part.node)}
    if len(dated) > 1:
        raise TraceError(path, None, "some outages have dates and others seconds, expected one clock")
    return Outages(node, down_s, np.concatenate([part.up_s for part in parts]), True in dated, counts)


def _find_columns(label: str, names: Sequence[str]) -> dict[str, str]:
    columns = {}
    for target, synonyms in _COLUMNS.items():
        found = next((name for name in names if normalize_name(name.casefold()) in synonyms), "")
        if found:
            columns[target] = found
        elif target != "state":
            problem = f"no column is known to hold {target}; the columns are: {', '.join(names)}"
            raise TraceError(label, 1, problem, "expected node, down_s and up_s, or sacctmgr show event -P")
    return columns


def _read_chunk(chunk: Chunk, columns: dict[str, str]) -> Outages:
    nodes = chunk.words(columns["node"])
    chunk.ignore(np.array([not word for word in nodes], dtype=np.bool_), "of the whole cluster")
    if "state" in columns:
        states = chunk.words(columns["state"])
        drains = np.array([_DRAIN.search(word) is not None for word in states], dtype=np.bool_)
        chunk.ignore(drains, "nodes that were only drained")
    down_s, dated = _times_s(chunk, columns["down"], ())
    up_s, _ = _times_s(chunk, columns["up"], _STILL_DOWN)
    chunk.not_before(columns["up"], up_s, columns["down"], down_s)
    for row in sorted(chunk.problems):
        if not chunk.ignored[row]:
            raise TraceError(chunk.label, int(chunk.line[row]), chunk.problems[row])
    keep = ~chunk.ignored
    dropped = {reason: int(rows.sum()) for reason, rows in chunk.ignored_by.items()}
    counts = ReadCounts(jobs=int(keep.sum()), dropped=dropped)
    wall_clock = bool((dated | (down_s > _EPOCH_S))[keep].any())
    return Outages(Labels.of(nodes)[keep], down_s[keep], up_s[keep], wall_clock, counts)


def _times_s(chunk: Chunk, name: str, missing: Sequence[str]) -> tuple[Floats, Bools]:
    """Return times, inf for *missing* ones, and which of them are dates."""
    words = chunk.words(name)
    values = np.array([math.inf if word in missing else parse_moment(word) for word in words])
    chunk.reject(
        np.isnan(values), lambda row: f"{name} is {words[row]!r}, expected a number of seconds or a date"
    )
    return values, np.array([bool(re.match(r"\d{4}-\d\d-\d\d", word)) for word in words], dtype=np.bool_)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts n2 before n10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])}, … {names[-1]}"


def _raise(error: TraceError) -> None:
    raise error
