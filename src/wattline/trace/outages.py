"""Recorded outages of nodes: a table (node, down_s, up_s), or what `sacctmgr show event -P` prints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
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
_DOWN = re.compile(r"down|fail|not_resp|powered", re.IGNORECASE)
_EPOCH_S = 5e8


@dataclass(frozen=True, eq=False)
class Outages:
    """Outages of nodes; *up_s* inf: still down. *wall_clock*: times count since 1970.

    *drained*: the node is up, its jobs run on, and no other starts there.
    """

    node: Labels
    down_s: Floats
    up_s: Floats
    wall_clock: bool
    counts: ReadCounts
    drained: Bools

    def match(
        self, names: Sequence[str], origin_s: float | None
    ) -> tuple[tuple[tuple[int, float, float], ...], str]:
        """Return (row, down_s, up_s) for nodes with these *names*, and how they were matched if not by name.

        Drained nodes are left out, see `match_drains`. *origin_s* is time 0 of the trace in seconds since
        1970; None: the trace has no dates.
        """
        return self._match_times(names, origin_s, ~self.drained)

    def match_drains(
        self, names: Sequence[str], origin_s: float | None
    ) -> tuple[tuple[int, float, float], ...]:
        """Return (row, from_s, to_s) of drained nodes, matched as by `match`."""
        return self._match_times(names, origin_s, self.drained)[0]

    def _match_times(
        self, names: Sequence[str], origin_s: float | None, chosen: Bools
    ) -> tuple[tuple[tuple[int, float, float], ...], str]:
        if self.wall_clock and origin_s is None:
            raise ConfigError(
                "the outages have dates, and the trace has only seconds from a start",
                "give the outages in seconds on the clock of the trace",
            )
        shift_s = origin_s if self.wall_clock and origin_s is not None else 0.0
        rows, how = self._match_names(names)
        row = [rows[name] for name in self.node[chosen].words()]
        down_s, up_s = (column[chosen] - shift_s for column in (self.down_s, self.up_s))
        return tuple(zip(row, down_s.tolist(), up_s.tolist(), strict=True)), how

    def _match_names(self, names: Sequence[str]) -> tuple[dict[str, int], str]:
        return match_node_names(self.node.words(), names, "outages")


def match_node_names(used: Iterable[str], names: Sequence[str], what: str) -> tuple[dict[str, int], str]:
    """Return the row of each *used* name among *names* of the cluster, and how they were matched.

    Without a common name they stand for the cluster's nodes in order. *what* names them, for messages.
    """
    known = {name: row for row, name in enumerate(names)}
    wanted = set(used)
    if wanted <= set(known):
        return known, ""
    if wanted & set(known) or len(wanted) > len(known):
        absent = sorted(wanted - set(known), key=_natural)
        verb = "have" if len(wanted) > 1 else "has"
        raise ConfigError(
            f"{what} name the node {absent[0]!r}, expected nodes of the cluster: {_shorten(names)}",
            f"{len(wanted)} nodes {verb} {what}, and the cluster has {len(known)}",
        )
    ordered = sorted(wanted, key=_natural)
    how = f"{what} name other nodes than the cluster; {_shorten(ordered)} stand for {_shorten(names)}"
    return {name: row for row, name in enumerate(ordered)}, how


def read_outages(path: str) -> Outages:
    """Read the outages and drains in a file."""
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
    up_s, drained = (np.concatenate([getattr(part, name) for part in parts]) for name in ("up_s", "drained"))
    return Outages(node, down_s, up_s, True in dated, counts, drained)


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
    states = chunk.words(columns["state"]) if "state" in columns else [""] * len(nodes)
    drained = np.array([bool(_DRAIN.search(word)) and not _DOWN.search(word) for word in states], np.bool_)
    down_s, dated = _times_s(chunk, columns["down"], ())
    up_s, _ = _times_s(chunk, columns["up"], _STILL_DOWN)
    chunk.not_before(columns["up"], up_s, columns["down"], down_s)
    for row in sorted(chunk.problems):
        if not chunk.ignored[row]:
            raise TraceError(chunk.label, int(chunk.line[row]), chunk.problems[row])
    keep = ~chunk.ignored
    dropped = {reason: int(rows.sum()) for reason, rows in chunk.ignored_by.items()}
    counts = ReadCounts(jobs=int((keep & ~drained).sum()), dropped=dropped)
    wall_clock = bool((dated | (down_s > _EPOCH_S))[keep].any())
    return Outages(Labels.of(nodes)[keep], down_s[keep], up_s[keep], wall_clock, counts, drained[keep])


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
