"""Slurm's accounting: `sacct -P` with a header, any order and choice of columns.

GPUs are those allocated (AllocTRES), else those requested; jobs without any, steps of jobs and jobs
that have not both started and ended are ignored. Jobs recur when SubmitLine, WorkDir and JobName agree,
as far as these columns are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from wattline.core.table import Floats, Ints, Labels
from wattline.errors import TraceError
from wattline.trace.builder import Draft
from wattline.trace.field_parser import Chunk
from wattline.trace.file_source import ArchiveMember
from wattline.trace.format import Format, Head
from wattline.trace.row_reader import Report, split_lines

_UNKNOWN = ("", "Unknown", "None", "N/A")
_GPUS = re.compile(r"gres/gpu(?::([^=,]+))?=(\d{1,9})(?!\d)")
_KEY = ("SubmitLine", "WorkDir", "JobName")


def _recognises(head: Head) -> bool:
    header = set(head.fields("|"))
    return "Submit" in header and not header.isdisjoint(("JobID", "JobIDRaw"))


def _chunks(member: ArchiveMember, report: Report) -> Iterator[Chunk]:
    header = Head.of(member.data).fields("|")
    _check_header(member.label, set(header))
    # A pipe in a command line is not escaped; it does no harm where the command line comes last.
    last = len(header) - 1 if header[-1] == "SubmitLine" else -1
    return split_lines(member, report, lambda line: line.split("|", last))


def _check_header(label: str, header: set[str]) -> None:
    if header.isdisjoint(("AllocTRES", "ReqTRES")):
        raise TraceError(
            label,
            1,
            "the columns AllocTRES and ReqTRES are both missing, expected one of them for the number of GPUs",
        )
    if "ElapsedRaw" not in header and not {"Start", "End"} <= header:
        raise TraceError(label, 1, "expected the column ElapsedRaw, or both Start and End")


def _draft(chunk: Chunk) -> Draft:
    identity = "JobIDRaw" if chunk.has("JobIDRaw") else "JobID"
    chunk.ignore(np.array(["." in word for word in chunk.words(identity)], dtype=np.bool_))
    submit_s = chunk.moments("Submit", missing=())
    gpus, kind = _gpus(chunk)
    start_s, end_s, duration_s = _times_s(chunk, submit_s)
    return Draft(
        id=chunk.ids(identity),
        submit_s=submit_s,
        gpus=gpus,
        duration_s=duration_s,
        team=chunk.labels("Account"),
        user=chunk.labels("User"),
        gpu_kind=kind,
        key=_keys(chunk),
        status=_states(chunk),
        start_s=start_s,
        end_s=end_s,
        **_recorded(chunk),
    )


def _recorded(chunk: Chunk) -> dict[str, Any]:
    """Return the columns of the recorded schedule except its times."""
    return {
        "time_limit_s": _time_limits_s(chunk),
        "partition": chunk.labels("Partition"),
        "qos": chunk.labels("QOS"),
        "name": chunk.labels("JobName"),
        "array": _arrays(chunk),
        "nodes": chunk.labels("NodeList" if chunk.has("NodeList") else "NNodes"),
        "requeues": chunk.whole("Restarts", "a whole number", 0, {"": 0.0}) if chunk.has("Restarts") else None,
    }


def _time_limits_s(chunk: Chunk) -> Floats | None:
    """Return the time limits; TimelimitRaw is in minutes."""
    if chunk.has("TimelimitRaw"):
        return chunk.limits("TimelimitRaw", unit_s=60.0)
    return chunk.limits("Timelimit", unit_s=60.0) if chunk.has("Timelimit") else None


def _arrays(chunk: Chunk) -> Labels | None:
    """Return the ids of job arrays: 12 of the task 12_3."""
    if not chunk.has("JobID"):
        return None
    return Labels.of(word.partition("_")[0] if "_" in word else "" for word in chunk.words("JobID"))


def _times_s(chunk: Chunk, submit_s: Floats) -> tuple[Floats, Floats, Floats]:
    """Return start, end and duration; what the columns do not say follows from the others, else nan."""
    unknown = np.full(len(chunk), np.nan)
    duration_s = _durations_s(chunk, submit_s)
    start_s = _moments(chunk, "Start") if chunk.has("Start") else unknown
    end_s = _moments(chunk, "End") if chunk.has("End") else start_s + duration_s
    return start_s, end_s, duration_s


def _durations_s(chunk: Chunk, submit_s: Floats) -> Floats:
    spans = [_moments(chunk, name) for name in ("Start", "End") if chunk.has(name)]
    for moment_s in spans:
        chunk.ignore(np.isnan(moment_s))
    if chunk.has("Start"):
        chunk.not_before("Start", spans[0], "Submit", submit_s)
    if chunk.has("Start", "End"):
        chunk.not_before("End", spans[1], "Start", spans[0])
    if not chunk.has("ElapsedRaw"):
        return spans[1] - spans[0]
    expected = "a number of seconds, at least 0"
    elapsed_s = chunk.numbers("ElapsedRaw", expected, 0.0, missing=dict.fromkeys(_UNKNOWN, np.nan))
    chunk.ignore(np.isnan(elapsed_s))
    return elapsed_s


def _moments(chunk: Chunk, name: str) -> Floats:
    return chunk.moments(name, _UNKNOWN)


def _gpus(chunk: Chunk) -> tuple[Ints, Labels]:
    """Return GPUs and their kind; ignore jobs without GPUs."""
    nothing: Sequence[str] = ("",) * len(chunk)
    allocated = chunk.words("AllocTRES") if chunk.has("AllocTRES") else nothing
    requested = chunk.words("ReqTRES") if chunk.has("ReqTRES") else nothing
    tres = Labels.of(had or asked for had, asked in zip(allocated, requested, strict=True))
    found = [_parse_tres(text) for text in tres.names]
    gpus = np.array([count for count, _ in found], dtype=np.int64)[tres.codes]
    chunk.ignore(gpus == 0)
    return np.maximum(gpus, 1), Labels.of(found[code][1] for code in tres.codes.tolist())


def _parse_tres(tres: str) -> tuple[int, str]:
    """Return number and types of GPUs; only typed entries count (`gres/gpu=4,gres/gpu:a100=4`: 4), if any."""
    found = _GPUS.findall(tres)
    kinds = {kind: int(count) for kind, count in found if kind and int(count)}
    bare = sum(int(count) for kind, count in found if not kind)
    return (sum(kinds.values()), "|".join(sorted(kinds))) if kinds else (bare, "")


def _keys(chunk: Chunk) -> Labels | None:
    """Return recurrence keys; None without SubmitLine, as a job name alone does not identify a job."""
    if not chunk.has("SubmitLine"):
        return None
    together = zip(*(chunk.words(name) for name in _KEY if chunk.has(name)), strict=True)
    return Labels.of(" @ ".join(words) if words[0] else "" for words in together)


def _states(chunk: Chunk) -> Labels | None:
    if not chunk.has("State"):
        return None
    return Labels.of(word.split(" ", 1)[0] for word in chunk.words("State"))


SACCT = Format(
    name="sacct",
    says="Slurm's `sacct -P`: JobIDRaw|Submit|ElapsedRaw|AllocTRES|… with a header",
    recognises=_recognises,
    chunks=_chunks,
    draft=_draft,
    wall_clock=True,
)
