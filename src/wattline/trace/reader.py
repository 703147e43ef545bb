"""Read a trace file of any format."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Rows
from wattline.errors import ConfigError, TraceError
from wattline.trace.builder import (
    Draft,
    build_jobs,
    build_recorded,
    compact_labels,
    concatenate_drafts,
    drop_bad_rows,
    drop_duplicate_ids,
    qualify_ids,
    shift_to_first_submission,
)
from wattline.trace.column_mapping import ColumnMapping, parse_columns
from wattline.trace.combined import TIMED_ON, combined
from wattline.trace.file_source import ArchiveMember, TraceFile, open_trace_file
from wattline.trace.format import Format, Head
from wattline.trace.formats.any_table import TABLE, build_table_format, find_columns
from wattline.trace.formats.registry import FORMATS, find_format, recognise_format
from wattline.trace.formats.sacct import RUNNING
from wattline.trace.read_counts import BROKEN, ReadCounts, describe_counts
from wattline.trace.recorded import RecordedSchedule
from wattline.trace.row_reader import Report
from wattline.trace.synthetic import parse_parameters, synth
from wattline.trace.table_rows import find_table

GENERATORS: Mapping[str, Callable[..., Jobs]] = {"synth": synth, "combined": combined}
"""Functions that make jobs without a file, by the word in front of their parameters."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Jobs and their origin.

    *sha256* is that of the file's bytes as they are on disk (of the parameters for generated jobs). *skipped*
    are the bad rows; *counts* says what became of all rows of the file.
    *recorded* is the schedule that the file records, row by row that of *jobs*; None: it has none.
    *columns* are those of a file in the format `table`. *origin_s* is time 0 in seconds since 1970, where
    the file has dates.
    """

    jobs: Jobs
    format: str
    name: str
    sha256: str
    skipped: tuple[TraceError, ...] = ()
    counts: ReadCounts = field(default_factory=ReadCounts)
    recorded: RecordedSchedule | None = None
    columns: ColumnMapping | None = None
    origin_s: float | None = None

    @property
    def ignored(self) -> int:
        """Rows that are right but no GPU jobs, or that never started."""
        return self.counts.ignored

    def take(self, rows: Rows) -> Trace:
        """Return the trace of the jobs in *rows* only."""
        recorded = None if self.recorded is None else self.recorded.take(rows)
        return replace(self, jobs=self.jobs.take(rows), recorded=recorded)

    def drop_running(self) -> Trace:
        """Return the trace without jobs that were still running when it was recorded, with their count."""
        if self.recorded is None:
            return self
        running = np.isfinite(self.recorded.start_s) & np.isnan(self.recorded.end_s)
        if not running.any():
            return self
        repaired = {what: count for what, count in self.counts.repaired.items() if what != RUNNING}
        dropped = {**self.counts.dropped, "still running": int(running.sum())}
        jobs = self.counts.jobs - int(running.sum())
        counts = replace(self.counts, jobs=jobs, repaired=repaired, dropped=dropped)
        return replace(self.take(~running), counts=counts)


def read_trace(
    path: str | os.PathLike[str],
    format: str | None = None,
    skip_bad: bool = False,
    columns: str | None = None,
) -> Jobs:
    """Return the jobs of the trace at *path*; see `read`."""
    return read(path, format, skip_bad, columns).jobs


def read(
    path: str | os.PathLike[str],
    format: str | None = None,
    skip_bad: bool = False,
    columns: str | None = None,
) -> Trace:
    """Return the trace at *path*; its format is recognised by the content, not the name.

    Plain, .gz, .tar and .tar.gz files are read as they are; `a.tar.gz#b.csv` is one member of a tar, and
    `synth:count=500,seed=3` and `combined:count=300` need no file. *format* forces a format. A bad row
    raises `TraceError`; with *skip_bad* it is left out and recorded, unless every row is bad. *columns* says
    which columns of a table hold what, as in `submit=arrival_s,gpus=gpu_count`; those of the format
    `table` that are not named are guessed.
    """
    text = os.fspath(path)
    given = {} if columns is None else parse_columns(columns)
    if given and format not in (None, "csv", TABLE.name):
        hint = "leave the format out, or take table"
        raise ConfigError(f"columns cannot be named in the format {format}", hint)
    forced = TABLE if given else None if format is None else find_format(format)
    if text.partition(":")[0] in GENERATORS:
        return _build_synthetic(text)
    source = open_trace_file(text)
    chosen, members = _select_members(text, source, forced)
    if given and source.packed:
        hint = "name one member, as in archive.tar.gz#member.csv"
        raise TraceError(text, None, "columns cannot be named for all members of a tar", hint)
    mapping = find_columns(members[0], given) if chosen is TABLE else None
    if mapping is not None:
        chosen = build_table_format(mapping)
    skipped: list[TraceError] = []
    draft, counts = _read_drafts(source, members, chosen, skipped.append if skip_bad else _raise)
    if len(draft) == 0:
        raise _build_empty_error(text, skipped, counts)
    name, sha256 = source.name, source.sha256
    del source, members  # the text, before the columns are copied
    origin_s = float(draft.submit_s.min()) if chosen.wall_clock else None
    if chosen.wall_clock:
        draft = shift_to_first_submission(draft)
    jobs, recorded = build_jobs(draft), build_recorded(draft)
    broken = {BROKEN: len(skipped)} if skipped else {}
    counts += ReadCounts(jobs=len(jobs), dropped=broken)
    return Trace(
        jobs,
        chosen.name,
        name,
        sha256,
        tuple(skipped),
        counts,
        recorded,
        mapping,
        origin_s,
    )


def _build_synthetic(text: str) -> Trace:
    word, _, parameters = text.partition(":")
    chosen = parse_parameters(parameters, GENERATORS[word])
    canonical = ",".join(f"{name}={chosen[name]}" for name in sorted(chosen))
    jobs, sha256 = GENERATORS[word](**chosen), hashlib.sha256(f"{word}:{canonical}".encode()).hexdigest()
    return Trace(jobs, word, text, sha256, counts=ReadCounts(jobs=len(jobs)))


def shift_seed(text: str, by: int) -> str:
    """Return the name of a synthetic trace with its seed moved on by *by*; a file's name as it is."""
    word, _, parameters = text.partition(":")
    if word not in GENERATORS:
        return text
    seed = parse_parameters(parameters, GENERATORS[word]).get("seed", 0)
    others = [item for item in parameters.split(",") if item and item.partition("=")[0].strip() != "seed"]
    return f"{word}:{','.join((*others, f'seed={seed + by}'))}" if by else text


def find_timed_on(format: str) -> str:
    """Return the GPU kind for which durations in *format* hold; "": they were recorded, on any kind."""
    if format == combined.__name__:
        return TIMED_ON
    return FORMATS[format].timed_on if format in FORMATS else ""


def _select_members(
    path: str, source: TraceFile, forced: Format | None
) -> tuple[Format, tuple[ArchiveMember, ...]]:
    """Return the format, and the members of *source* in that format; other members are ignored."""
    if forced is not None and not source.packed:
        return forced, source.members
    found = [(member, recognise_format(member.data)) for member in source.members]
    formats = {format.name for _, format in found if format is not None}
    if forced is not None:
        formats &= {forced.name}
    if len(formats) > 1:
        several = " and ".join(sorted(formats))
        hint = "name one member, as in archive.tar.gz#member.csv, or one format"
        raise TraceError(path, None, f"the tar holds traces of several formats: {several}", hint)
    if not formats:
        raise _build_unrecognised_error(path, source)
    chosen = FORMATS[formats.pop()]
    return chosen, tuple(member for member, format in found if format is chosen)


def _build_unrecognised_error(path: str, source: TraceFile) -> TraceError:
    start = b"" if source.packed else source.members[0].data[:4096]
    nearest = _find_nearest_format(start)
    hint = f"{nearest.name} is {nearest.says}; docs/traces.md describes all formats"
    if b"\0" in start:
        return TraceError(path, None, "the file is binary, expected the text of a trace", hint)
    if not source.packed and not start.strip():
        return TraceError(path, None, "the file is empty", hint)
    what = "no member of the tar has any" if source.packed else "the text is in none"
    problem = f"{what} of the formats {', '.join(FORMATS)}"
    if not source.packed and find_table(Head.of(start)) is not None:
        try:
            find_columns(source.members[0], {})
        except TraceError as error:
            return TraceError(
                path, None, f"{problem}; as a table: {error.problem}", f"{hint}; or {error.hint}"
            )
    return TraceError(path, None, problem, hint)


def _find_nearest_format(start: bytes) -> Format:
    """Return the format with most words in common with the first line, else Wattline's own."""
    words = set(re.findall(r"\w+", start.decode("utf-8", "replace").partition("\n")[0].casefold()))
    common = {
        name: len(words & set(re.findall(r"\w+", format.says.casefold()))) for name, format in FORMATS.items()
    }
    best = max(common, key=lambda name: common[name])
    return FORMATS[best] if common[best] > 1 else FORMATS["csv"]


def _read_drafts(
    source: TraceFile, members: tuple[ArchiveMember, ...], format: Format, report: Report
) -> tuple[Draft, ReadCounts]:
    parts, counts = [], ReadCounts()
    for member in members:
        draft, more = _read_member(member, format, report)
        counts += more
        parts.append(qualify_ids(draft, member.stem) if source.packed else draft)
    return parts[0] if len(parts) == 1 else concatenate_drafts(parts), counts


def _read_member(member: ArchiveMember, format: Format, report: Report) -> tuple[Draft, ReadCounts]:
    parts, lines, counts = [], [], ReadCounts()
    words: dict[str, str] = {}
    for chunk in format.chunks(member, report):
        draft, line, more = drop_bad_rows(chunk, format.draft(chunk), report)
        parts.append(compact_labels(draft, words))
        lines.append(line)
        counts += more
    words.clear()
    if not parts:
        return Draft([], np.empty(0), np.empty(0, dtype=np.int64)), counts
    draft, line = concatenate_drafts(parts), np.concatenate(lines)
    if format.join is not None:
        draft, line, more = format.join(draft, line)
        counts += more
    return drop_duplicate_ids(member.label, draft, line, report), counts


def _build_empty_error(path: str, skipped: list[TraceError], counts: ReadCounts) -> TraceError:
    if skipped:
        first = skipped[0]
        return TraceError(first.path, first.line, first.problem, f"all {len(skipped)} rows are bad")
    if counts.ignored:
        problem = f"no jobs: all {counts.ignored} rows were left out: {describe_counts(counts.dropped)}"
        return TraceError(path, None, problem)
    return TraceError(path, None, "no jobs: nothing follows the header")


def _raise(error: TraceError) -> None:
    raise error
