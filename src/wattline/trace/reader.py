"""Which jobs does this file hold."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import numpy as np

from wattline.core.jobs import Jobs
from wattline.errors import TraceError
from wattline.trace.builder import Draft, finished, from_first_submission, joined, settled, unique, within
from wattline.trace.file_source import Member, Source, open_source
from wattline.trace.format import Format
from wattline.trace.formats.registry import FORMATS, named, recognised
from wattline.trace.row_reader import Report
from wattline.trace.synthetic import parameters, synth


@dataclass(frozen=True, eq=False)
class Trace:
    """Jobs, and where they come from.

    *sha256* is that of the file's bytes as they are on disk (of the parameters for `synth`). *skipped*
    are the bad rows; *ignored* counts rows that are right but no GPU jobs, or that never started.
    """

    jobs: Jobs
    format: str
    name: str
    sha256: str
    skipped: tuple[TraceError, ...] = ()
    ignored: int = 0


def read_trace(path: str | os.PathLike[str], format: str | None = None, skip_bad: bool = False) -> Jobs:
    """The jobs of the trace at *path*; see `read`."""
    return read(path, format, skip_bad).jobs


def read(path: str | os.PathLike[str], format: str | None = None, skip_bad: bool = False) -> Trace:
    """The trace at *path*, whatever its format: that is recognised from the content, not the name.

    Plain, .gz, .tar and .tar.gz files are read as they are; `a.tar.gz#b.csv` is one member of a tar, and
    `synth:count=500,seed=3` needs no file. *format* forces a format. A bad row raises `TraceError`;
    with *skip_bad* it is left out and recorded, unless every row is bad.
    """
    text = os.fspath(path)
    forced = None if format is None else named(format)
    if text == "synth" or text.startswith("synth:"):
        return _synthetic(text)
    source = open_source(text)
    chosen, members = _members(text, source, forced)
    skipped: list[TraceError] = []
    draft, ignored = _drafted(source, members, chosen, skipped.append if skip_bad else _raise)
    if len(draft) == 0:
        raise _nothing(text, skipped, ignored)
    jobs = finished(from_first_submission(draft) if chosen.wall_clock else draft)
    return Trace(jobs, chosen.name, source.name, source.sha256, tuple(skipped), ignored)


def _synthetic(text: str) -> Trace:
    chosen = parameters(text.partition(":")[2])
    said = ",".join(f"{name}={chosen[name]}" for name in sorted(chosen))
    return Trace(synth(**chosen), "synth", text, hashlib.sha256(f"synth:{said}".encode()).hexdigest())


def _members(path: str, source: Source, forced: Format | None) -> tuple[Format, tuple[Member, ...]]:
    """The format, and the members of *source* that have it; what is no trace is passed over."""
    if forced is not None and not source.packed:
        return forced, source.members
    found = [(member, recognised(member.data)) for member in source.members]
    formats = {format.name for _, format in found if format is not None}
    if forced is not None:
        formats &= {forced.name}
    if len(formats) > 1:
        several = " and ".join(sorted(formats))
        hint = "name one member, as in archive.tar.gz#member.csv, or one format"
        raise TraceError(path, None, f"the tar holds traces of several formats: {several}", hint)
    if not formats:
        raise _unrecognised(path, source)
    chosen = FORMATS[formats.pop()]
    return chosen, tuple(member for member, format in found if format is chosen)


def _unrecognised(path: str, source: Source) -> TraceError:
    known = "; ".join(f"{format.name} ({format.says})" for format in FORMATS.values())
    hint = f"the formats are: {known}"
    start = b"" if source.packed else source.members[0].data[:4096]
    if b"\0" in start:
        return TraceError(path, None, "this is binary data, expected the text of a trace", hint)
    if not source.packed and not start.strip():
        return TraceError(path, None, "the file is empty", hint)
    what = "no member of the tar has any" if source.packed else "the text is in none"
    return TraceError(path, None, f"{what} of the formats {', '.join(FORMATS)}", hint)


def _drafted(
    source: Source, members: tuple[Member, ...], format: Format, report: Report
) -> tuple[Draft, int]:
    parts, ignored = [], 0
    for member in members:
        draft, left_out = _draft_of(member, format, report)
        ignored += left_out
        parts.append(within(draft, member.stem) if source.packed else draft)
    return joined(parts), ignored


def _draft_of(member: Member, format: Format, report: Report) -> tuple[Draft, int]:
    parts, lines, ignored = [], [], 0
    for chunk in format.chunks(member, report):
        draft, line = settled(chunk, format.draft(chunk), report)
        parts.append(draft)
        lines.append(line)
        ignored += int(chunk.ignored.sum())
    if not parts:
        return Draft([], np.empty(0), np.empty(0, dtype=np.int64)), 0
    return unique(member.label, joined(parts), np.concatenate(lines), report), ignored


def _nothing(path: str, skipped: list[TraceError], ignored: int) -> TraceError:
    if skipped:
        first = skipped[0]
        return TraceError(first.path, first.line, first.problem, f"all {len(skipped)} rows are bad")
    if ignored:
        return TraceError(path, None, f"no jobs: all {ignored} rows need no GPU, or never started")
    return TraceError(path, None, "no jobs: nothing follows the header")


def _raise(error: TraceError) -> None:
    raise error
