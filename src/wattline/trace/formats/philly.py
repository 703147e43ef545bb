"""Microsoft's Philly job log: a JSON list of jobs, each with its attempts.

A job runs as long as its attempts together; what lies between two attempts is waiting, not work. It
asks for the most GPUs that an attempt held. Attempts that never began, or had not ended when the log
was cut, say nothing; a job left without attempts or without GPUs is ignored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from wattline.core.table import Ints
from wattline.errors import TraceError
from wattline.trace.builder import Draft
from wattline.trace.field_parser import Chunk, moment
from wattline.trace.file_source import ArchiveMember
from wattline.trace.format import Format, Head
from wattline.trace.row_reader import Report

_WORDS = ("jobid", "vc", "user", "status", "submitted_time")
_JOB_ID = re.compile(r'"jobid"\s*:')
_NEVER = (None, "", "None")


class _Runs(NamedTuple):
    """Sum of the attempts of a job; nan: there are none."""

    gpus: int = 0
    duration_s: float = math.nan
    start_s: float = math.nan  # of the first
    end_s: float = math.nan  # of the last
    nodes: str = ""  # of the last
    requeues: int = -1


def _recognises(head: Head) -> bool:
    return head.text.lstrip().startswith("[") and '"attempts"' in head.text and '"jobid"' in head.text


def _chunks(member: ArchiveMember, report: Report) -> Iterator[Chunk]:
    text = _decoded(member)
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as problem:
        raise TraceError(member.label, problem.lineno, f"not valid JSON ({problem.msg})") from None
    except RecursionError:
        raise TraceError(member.label, None, "not valid JSON (nested too deeply)") from None
    if not isinstance(entries, list):
        raise TraceError(member.label, 1, "expected a list of jobs")
    if entries:
        yield _chunk(member.label, entries, _lines(text, len(entries)))


def _decoded(member: ArchiveMember) -> str:
    try:
        return member.data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = member.data.count(b"\n", 0, problem.start) + 1
        byte = member.data[problem.start]
        raise TraceError(member.label, line, f"byte 0x{byte:02x} is not UTF-8 text") from None


def _lines(text: str, count: int) -> Ints:
    """Return the line of each job's "jobid"; unknown (0) unless every job has exactly one."""
    starts = [match.start() for match in _JOB_ID.finditer(text)]
    if len(starts) != count:
        return np.zeros(count, dtype=np.int64)
    ends = np.array([match.start() for match in re.finditer("\n", text)], dtype=np.int64)
    return np.searchsorted(ends, np.array(starts, dtype=np.int64)) + 1


def _chunk(label: str, entries: list[Any], line: Ints) -> Chunk:
    """Return the jobs as columns of words; what its attempts amount to is in those of `_Runs`."""
    problems: dict[int, str] = {}
    columns: dict[str, list[str]] = {name: [] for name in (*_WORDS, *_Runs._fields)}
    for row, entry in enumerate(entries):
        runs = _Runs(1)
        if not isinstance(entry, dict) or not isinstance(entry.get("attempts"), list):
            problems[row] = f"job {row + 1} of the list has no list of attempts"
            entry = {}
        else:
            try:
                runs = _add_attempts(entry["attempts"])
            except (ValueError, TypeError, KeyError, AttributeError) as problem:
                problems[row] = str(problem) if type(problem) is ValueError else "its attempts make no sense"
        for name in _WORDS:
            value = entry.get(name)
            columns[name].append("" if value is None else str(value))
        for name, amount in zip(_Runs._fields, runs, strict=True):
            columns[name].append(str(amount))
    return Chunk(label, 0, line, dict(columns), problems)


def _add_attempts(attempts: list[dict[str, Any]]) -> _Runs:
    """Return what all attempts that began and ended amount to."""
    runs = _Runs()
    for attempt in attempts:
        start, end = attempt.get("start_time"), attempt.get("end_time")
        if start in _NEVER or end in _NEVER:
            continue
        start_s, end_s = moment(start), moment(end)
        if not end_s >= start_s:
            raise ValueError(f"end_time is {end!r}, expected a time not before start_time, {start!r}")
        runs = _Runs(
            max(runs.gpus, sum(len(node["gpus"]) for node in attempt["detail"])),
            end_s - start_s + (0.0 if math.isnan(runs.duration_s) else runs.duration_s),
            start_s if math.isnan(runs.start_s) else min(start_s, runs.start_s),
            end_s if math.isnan(runs.end_s) else max(end_s, runs.end_s),
            ",".join(str(node.get("ip", "")) for node in attempt["detail"]),
            runs.requeues + 1,
        )
    return runs


def _draft(chunk: Chunk) -> Draft:
    start_s, end_s, duration_s = (
        chunk.numbers(name, "a number of seconds", missing={"nan": math.nan})
        for name in ("start_s", "end_s", "duration_s")
    )
    chunk.ignore(np.isnan(duration_s), "without an attempt that began and ended")
    submit_s = chunk.moments("submitted_time", missing=())
    return Draft(
        id=chunk.ids("jobid"),
        submit_s=submit_s,
        gpus=chunk.gpus_or_none("gpus"),
        duration_s=duration_s,
        team=chunk.labels("vc"),
        user=chunk.labels("user"),
        status=chunk.labels("status"),
        start_s=start_s,
        end_s=end_s,
        nodes=chunk.labels("nodes"),
        requeues=np.maximum(chunk.whole("requeues", "a number of attempts", -1), 0),
    )


PHILLY = Format(
    name="philly",
    says="Microsoft Philly's cluster_job_log: a JSON list of jobs with attempts",
    recognises=_recognises,
    chunks=_chunks,
    draft=_draft,
    wall_clock=True,
)
