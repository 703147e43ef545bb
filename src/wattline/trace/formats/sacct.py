"""Slurm's accounting: what `sacct` prints, with a header, any order and choice of columns, any shape.

GPUs are those allocated, else those requested; jobs without any, steps of jobs and jobs that never started
are ignored. A job that was still running counts with the work it had done; of one that was requeued
(`sacct -D`) the last run counts. Jobs recur when SubmitLine, WorkDir and JobName agree, as far as these
columns are there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattline.core.table import Bools, Floats, Labels
from wattline.errors import TraceError
from wattline.trace.builder import Draft
from wattline.trace.field_parser import NEVER_STARTED, NOT_ENDED, WITHOUT_GPUS, Chunk
from wattline.trace.file_source import ArchiveMember
from wattline.trace.format import Format, Head
from wattline.trace.formats.sacct_energy import read_energy_j
from wattline.trace.formats.sacct_gpus import COLUMNS, read_gpus
from wattline.trace.formats.sacct_json import is_sacct_json, read_json
from wattline.trace.formats.sacct_rows import find_shape
from wattline.trace.requeued import join_runs
from wattline.trace.row_reader import Report, split_lines
from wattline.trace.submit_line import find_dependency_option

_UNKNOWN = ("", "Unknown", "None", "N/A")
_KEY = ("SubmitLine", "WorkDir", "JobName")
_STATES = ("OUT_OF_MEMORY", "BOOT_FAIL", "NODE_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "SUSPENDED")
_OPEN = frozenset(("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED"))
_CALL = (
    "sacct -a -X -D -P -o JobID,JobIDRaw,User,Account,Partition,QOS,State,Submit,Start,End,ElapsedRaw,"
    "Timelimit,NNodes,NodeList,ReqTRES,AllocTRES,Reservation,ConsumedEnergyRaw,JobName,WorkDir,SubmitLine"
)
_HOUR_S = 3600.0
_NODE_COUNT = re.compile(r"(?:^|,)node=(\d+)(?=,|$)")

RUNNING = "still running, with the work done so far"
HET_JOB = "part of a heterogeneous job, simulated on its own"
CLOCK_CHANGE = "with an end corrected for a change of the clock"


def _recognises(head: Head) -> bool:
    return find_shape(head) is not None or is_sacct_json(head)


def _chunks(member: ArchiveMember, report: Report) -> Iterator[Chunk]:
    head = Head.of(member.data)
    if is_sacct_json(head):
        return read_json(member)
    shape = find_shape(head)
    if shape is None:
        raise TraceError(
            member.label, 1, "expected a header with Submit and JobID or JobIDRaw, as sacct -P prints it"
        )
    _check_header(member.label, set(shape.names))
    return split_lines(member, report, shape.split, shape.names)


def _check_header(label: str, header: set[str]) -> None:
    if "Submit" not in header:
        raise TraceError(label, 1, "the column Submit is missing", f"export with {_CALL}")
    if header.isdisjoint(COLUMNS):
        raise TraceError(
            label,
            1,
            "the columns AllocTRES and ReqTRES are both missing, expected one of them, AllocGRES or ReqGRES"
            " for the number of GPUs",
        )
    if header.isdisjoint(("ElapsedRaw", "Elapsed")) and not {"Start", "End"} <= header:
        raise TraceError(label, 1, "expected the column ElapsedRaw, or both Start and End, or Elapsed")


def _draft(chunk: Chunk) -> Draft:
    identity = "JobIDRaw" if chunk.has("JobIDRaw") else "JobID"
    chunk.ignore(_contains(chunk, identity, "."), "job steps")
    if chunk.has("JobID"):
        chunk.repair(_contains(chunk, "JobID", "+"), HET_JOB)
    gpus, kind, without = read_gpus(chunk)
    states = _states(chunk)
    times = _read_times(chunk, states)
    chunk.ignore(without, WITHOUT_GPUS)
    return Draft(
        id=_ids(chunk, identity),
        submit_s=times.submit_s,
        gpus=gpus,
        duration_s=times.duration_s,
        team=chunk.labels("Account"),
        user=chunk.labels("User"),
        gpu_kind=kind,
        key=_keys(chunk),
        status=states,
        start_s=times.start_s,
        end_s=times.end_s,
        **_recorded(chunk),
    )


def _contains(chunk: Chunk, name: str, mark: str) -> Bools:
    return np.array([mark in word for word in chunk.words(name)], dtype=np.bool_)


def _ids(chunk: Chunk, identity: str) -> list[str]:
    ids = chunk.ids(identity)
    cut_off = np.array([word.endswith("+") for word in ids], dtype=np.bool_)
    expected = "expected the whole id: use sacct -P, or a wider column as in JobID%20"
    chunk.reject(cut_off, lambda row: f"{identity} is {ids[row]!r}, cut off, {expected}")
    if not chunk.has("Cluster"):
        return ids
    return [f"{cluster}/{name}" for cluster, name in zip(chunk.words("Cluster"), ids, strict=True)]


@dataclass(frozen=True, eq=False)
class _Times:
    """Times of jobs; nan: unknown."""

    submit_s: Floats
    start_s: Floats
    end_s: Floats
    duration_s: Floats


def _read_times(chunk: Chunk, states: Labels | None) -> _Times:
    """Return submission, start, end and duration; ignore jobs that never started."""
    unknown = np.full(len(chunk), np.nan)
    submit_s = chunk.moments("Submit", missing=(), epoch=True)
    start_s, end_s = (
        chunk.moments(name, _UNKNOWN, epoch=True) if chunk.has(name) else unknown for name in ("Start", "End")
    )
    elapsed_s = _elapsed_s(chunk)
    is_open, waits = _have_state(chunk, states, _OPEN), _have_state(chunk, states, {"PENDING"})
    lasted_s = np.where(np.isnan(elapsed_s), end_s - start_s, elapsed_s)
    chunk.ignore(waits | (~is_open & _is_never_allocated(chunk, states, lasted_s)), NEVER_STARTED)
    if chunk.has("Start"):
        chunk.ignore(np.isnan(start_s), NEVER_STARTED)
        chunk.not_before("Start", start_s, "Submit", submit_s)
    if chunk.has("Start", "End"):
        changed = np.abs(start_s + elapsed_s - end_s - _HOUR_S) < 1.0
        chunk.repair(changed & (end_s < start_s), CLOCK_CHANGE)
        end_s = np.where(changed & (end_s < start_s), start_s + elapsed_s, end_s)
        chunk.not_before("End", end_s, "Start", start_s)
    duration_s = np.where(np.isnan(elapsed_s), end_s - start_s, elapsed_s)
    end_s = end_s if chunk.has("End") else np.where(is_open, np.nan, start_s + duration_s)
    chunk.ignore(np.isnan(duration_s), NOT_ENDED)
    not_ended = np.isnan(end_s) if chunk.has("End") else is_open
    chunk.repair(not_ended & ~np.isnan(duration_s), RUNNING)
    return _Times(submit_s, start_s, end_s, duration_s)


def _is_never_allocated(chunk: Chunk, states: Labels | None, lasted_s: Floats) -> Bools:
    """Return which jobs were cancelled while they waited: Slurm gives them a start, but no resources."""
    at_once: Bools = (lasted_s == 0) & _have_state(chunk, states, {"CANCELLED"})
    if chunk.has("AllocTRES"):
        return at_once & np.array([not word for word in chunk.words("AllocTRES")], dtype=np.bool_)
    return at_once


def _have_state(chunk: Chunk, states: Labels | None, wanted: Collection[str]) -> Bools:
    if states is None:
        return np.zeros(len(chunk), dtype=np.bool_)
    return np.array([name in wanted for name in states.names], dtype=np.bool_)[states.codes]


def _elapsed_s(chunk: Chunk) -> Floats:
    if chunk.has("ElapsedRaw"):
        expected = "a number of seconds, at least 0"
        return chunk.numbers("ElapsedRaw", expected, 0.0, missing=dict.fromkeys(_UNKNOWN, np.nan))
    return chunk.durations("Elapsed", _UNKNOWN) if chunk.has("Elapsed") else np.full(len(chunk), np.nan)


def _recorded(chunk: Chunk) -> dict[str, Any]:
    """Return the columns of the recorded schedule except its times."""
    restarts = chunk.has("Restarts")
    return {
        "time_limit_s": _time_limits_s(chunk),
        "partition": chunk.labels("Partition"),
        "qos": chunk.labels("QOS"),
        "name": chunk.labels("JobName"),
        "array": _arrays(chunk),
        "nodes": _nodes(chunk),
        "requeues": chunk.whole("Restarts", "a whole number", 0, {"": 0.0}) if restarts else None,
        "dependency": _dependencies(chunk),
        "reservation": chunk.labels("Reservation"),
        "energy_j": read_energy_j(chunk),
    }


def _nodes(chunk: Chunk) -> Labels | None:
    """Return the names of each job's nodes, else their number; None: no column has them."""
    columns = [chunk.words(name) for name in ("NodeList", "NNodes", "AllocNodes") if chunk.has(name)]
    if chunk.has("AllocTRES"):
        lists = Labels.of(chunk.words("AllocTRES"))
        found = [_NODE_COUNT.search(text) for text in lists.names]
        counts = ["" if match is None else match[1] for match in found]
        columns.append([counts[code] for code in lists.codes.tolist()])
    if not columns:
        return None
    return Labels.of(next((word for word in words if word), "") for words in zip(*columns, strict=True))


def _dependencies(chunk: Chunk) -> Labels | None:
    """Return the conditions on other jobs: of the column Dependency, else of the command line."""
    if chunk.has("Dependency"):
        words = (word if word not in ("(null)", "None") else "" for word in chunk.words("Dependency"))
        return Labels.of(words)
    if not chunk.has("SubmitLine"):
        return None
    lines = Labels.of(chunk.words("SubmitLine"))
    found = [find_dependency_option(line) for line in lines.names]
    return Labels.of(found[code] for code in lines.codes.tolist()) if any(found) else None


def _time_limits_s(chunk: Chunk) -> Floats | None:
    """Return the time limits; those without colon are minutes."""
    name = "TimelimitRaw" if chunk.has("TimelimitRaw") else "Timelimit"
    return chunk.limits(name, unit_s=60.0) if chunk.has(name) else None


def _arrays(chunk: Chunk) -> Labels | None:
    """Return the ids of job arrays: 12 of the task 12_3."""
    if not chunk.has("JobID"):
        return None
    return Labels.of(word.partition("_")[0] if "_" in word else "" for word in chunk.words("JobID"))


def _keys(chunk: Chunk) -> Labels | None:
    """Return recurrence keys; None without SubmitLine, as a job name alone does not identify a job."""
    if not chunk.has("SubmitLine"):
        return None
    together = zip(*(chunk.words(name) for name in _KEY if chunk.has(name)), strict=True)
    return Labels.of(" @ ".join(words) if words[0] else "" for words in together)


def _states(chunk: Chunk) -> Labels | None:
    """Return the states without what follows them, such as CANCELLED of `CANCELLED by 1000`."""
    if not chunk.has("State"):
        return None
    return Labels.of(_complete_state(word.split(" ", 1)[0]) for word in chunk.words("State"))


def _complete_state(word: str) -> str:
    if not word.endswith("+"):
        return word
    return next((state for state in _STATES if state.startswith(word[:-1])), word[:-1])


SACCT = Format(
    name="sacct",
    says="Slurm's `sacct -P`: JobIDRaw|Submit|ElapsedRaw|AllocTRES|… with a header",
    recognises=_recognises,
    chunks=_chunks,
    draft=_draft,
    wall_clock=True,
    join=join_runs,
)
