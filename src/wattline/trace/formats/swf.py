"""The Standard Workload Format 2.2: eighteen numbers per job, -1 for unknown.

Processors are taken for GPUs: those requested, else those allocated. A job runs under an executable
number; together with the user it says which jobs recur. The requested time is the time limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wattline.core.table import Floats, Ints, Labels
from wattline.trace.builder import Draft
from wattline.trace.field_parser import GPUS, Chunk
from wattline.trace.file_source import ArchiveMember
from wattline.trace.format import Format, Head
from wattline.trace.row_reader import Report, split_lines

_NAMES = (
    *("job", "submit_s", "wait_s", "run_s", "allocated_procs", "cpu_s", "memory", "requested_procs"),
    *("requested_s", "requested_memory", "status", "user", "group", "executable", "queue", "partition"),
    *("preceding_job", "think_s"),
)
_STATUS = {"0": "FAILED", "1": "SUCCEEDED", "2": "PARTIAL", "3": "PARTIAL", "4": "PARTIAL", "5": "CANCELLED"}


def _recognises(head: Head) -> bool:
    rows = [line.split() for line in head.lines if not line.lstrip().startswith(";")]
    # A long header fills the lines at hand, but names its version.
    version = any(line.replace(" ", "").lower().startswith(";version:2") for line in head.lines)
    fitting = sum(len(row) == len(_NAMES) and _numeric(row) for row in rows)
    return 2 * fitting > len(rows) if rows else version


def _numeric(row: list[str]) -> bool:
    return all(field.removeprefix("-").replace(".", "", 1).isdigit() for field in row[:3])


def _chunks(member: ArchiveMember, report: Report) -> Iterator[Chunk]:
    return split_lines(member, report, _fields, _NAMES)


def _fields(line: str) -> list[str]:
    return [] if line.lstrip().startswith(";") else line.split()


def _draft(chunk: Chunk) -> Draft:
    run_s = chunk.numbers("run_s", "a number of seconds, at least 0, or -1", low=-1.0)
    chunk.ignore(run_s == -1, "without a run time")
    chunk.reject((run_s < 0) & (run_s > -1), lambda row: f"run_s is {run_s[row]}, expected at least 0, or -1")
    wait_s = chunk.numbers("wait_s", "a number of seconds, or -1")
    limit_s = chunk.numbers("requested_s", "a number of seconds, or -1")
    submit_s = chunk.seconds("submit_s")
    start_s = np.where(wait_s < 0, np.nan, submit_s + wait_s)
    return Draft(
        id=chunk.ids("job"),
        submit_s=submit_s,
        gpus=_gpus(chunk),
        duration_s=np.maximum(run_s, 0.0),
        team=_known(chunk, "queue"),
        user=_known(chunk, "user"),
        key=_keys(chunk),
        status=Labels.of(_STATUS.get(word, "") for word in chunk.words("status")),
        start_s=start_s,
        end_s=start_s + np.maximum(run_s, 0.0),
        time_limit_s=np.where(limit_s <= 0, np.nan, limit_s),
        partition=_known(chunk, "partition"),
    )


def _gpus(chunk: Chunk) -> Ints:
    expected = "a whole number of processors, or -1"
    requested: Floats = chunk.whole("requested_procs", expected, low=-1).astype(np.float64)
    allocated: Floats = chunk.whole("allocated_procs", expected, low=-1).astype(np.float64)
    gpus = np.where(requested > 0, requested, allocated)
    # 0 of both is a job that was never placed, as many cancelled ones are; unknown of both is no job at all.
    never_placed = (requested == 0) & (allocated <= 0) | (requested < 0) & (allocated == 0)
    chunk.ignore(never_placed, "without processors")
    chunk.reject(gpus < 0, lambda row: f"requested_procs and allocated_procs are -1, expected {GPUS}")
    return np.maximum(gpus, 1.0).astype(np.int64)


def _known(chunk: Chunk, name: str) -> Labels:
    return Labels.of("" if word == "-1" else word for word in chunk.words(name))


def _keys(chunk: Chunk) -> Labels:
    pairs = zip(chunk.words("user"), chunk.words("executable"), strict=True)
    return Labels.of("" if executable == "-1" else f"{user}/{executable}" for user, executable in pairs)


SWF = Format(
    name="swf",
    says="Standard Workload Format 2.2: 18 numbers per line, ; before comments",
    recognises=_recognises,
    chunks=_chunks,
    draft=_draft,
)
