"""Wattline's own CSV: a header that names columns of `Jobs`; unneeded columns may be missing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np

from wattline.core.jobs import PREEMPTIBLE_ALWAYS
from wattline.errors import TraceError
from wattline.measurement.gpu_names import find_gpu_kinds
from wattline.trace.builder import Draft
from wattline.trace.field_parser import Chunk
from wattline.trace.file_source import ArchiveMember
from wattline.trace.format import Format, Head
from wattline.trace.row_reader import Report, delimited

WORDS = ("team", "user", "model", "gpu_kind", "key", "fuse", "status")
RECORDED_WORDS = ("partition", "qos", "name", "array", "nodes", "dependency", "reservation")
COLUMNS = (
    *("id", "submit_s", "gpus", "duration_s", "steps", "step_s", "deadline_s", "late_per_h"),
    *("priority", "batch"),
    *("min_gpus", "max_gpus", "max_batch", "noise", "cpus", "mem_gib", "always_fuse"),
    *WORDS,
    *("preemptible", "checkpoint_s", "min_runtime_s"),
    *("start_s", "end_s", "time_limit_s", *RECORDED_WORDS, "requeues", "energy_j"),
)
"""The columns there are, in the order in which `write_trace` writes them."""

PREEMPTIBLE_WORDS = ("no", "yes", "saved")
"""Words of the column `preemptible`, by its code in `Jobs`."""

ALIASES = {"tardiness_weight": "late_per_h", "fusion_key": "fuse"}
"""Other names of columns, as job files have them."""

_ABOVE_0 = math.ulp(0.0)
_PREEMPTIBLE = {word: float(code) for code, word in enumerate(PREEMPTIBLE_WORDS)} | {"": PREEMPTIBLE_ALWAYS}
_COUNTED = {"batch": "samples", "min_gpus": "GPUs", "max_gpus": "GPUs", "max_batch": "samples"}


def _recognises(head: Head) -> bool:
    named = set(head.fields(",")) & set(COLUMNS)
    # Two of the needed names are enough, so that a slip in a third is named instead of the whole file.
    return len(named & {"submit_s", "gpus", "duration_s", "steps", "step_s"}) >= 2


def _chunks(member: ArchiveMember, report: Report) -> Iterator[Chunk]:
    _check_header(member.label, Head.of(member.data).fields(","))
    return delimited(member, report)


def _check_header(label: str, header: tuple[str, ...]) -> None:
    for name in header:
        if name not in (*COLUMNS, *ALIASES):
            near = get_close_matches(name, COLUMNS, 1, cutoff=0.0)[0]
            hint = f"the columns are: {', '.join(COLUMNS)}; --columns reads any other table"
            raise TraceError(label, 1, f"unknown column {name!r}, did you mean {near!r}?", hint)
    for alias, name in ALIASES.items():
        if {alias, name} <= set(header):
            raise TraceError(label, 1, f"{name} and {alias} are the same, expected one of them")
    for name in ("submit_s", "gpus"):
        if name not in header:
            raise TraceError(label, 1, f"the column {name} is missing")
    if ("duration_s" in header) == bool({"steps", "step_s"} & set(header)):
        raise TraceError(label, 1, "expected either the column duration_s, or both steps and step_s")


def _draft(chunk: Chunk) -> Draft:
    return Draft(
        id=chunk.ids("id") if chunk.has("id") else chunk.numbered(),
        submit_s=chunk.numbers("submit_s", "a number of seconds"),
        gpus=chunk.gpus("gpus"),
        **_work(chunk),
        **_requests(chunk),
        **_labels(chunk),
        **_recorded(chunk),
    )


def _labels(chunk: Chunk) -> dict[str, Any]:
    words = {name: chunk.labels(_column_name(chunk, name)) for name in WORDS}
    return words | {"gpu_kind": chunk.kinds("gpu_kind", resolve=find_gpu_kinds)}


def _column_name(chunk: Chunk, name: str) -> str:
    """Return the name that *chunk* uses for the column *name*."""
    return next((alias for alias, own in ALIASES.items() if own == name and chunk.has(alias)), name)


def _work(chunk: Chunk) -> dict[str, Any]:
    if chunk.has("duration_s"):
        return {"duration_s": chunk.seconds("duration_s")}
    return {
        "steps": chunk.numbers("steps", "a number of steps, at least 0", low=0.0),
        "step_s": chunk.numbers("step_s", "a number of seconds, above 0", low=_ABOVE_0),
    }


def _requests(chunk: Chunk) -> dict[str, Any]:
    requests: dict[str, Any] = {}
    if chunk.has("deadline_s"):
        none = {"": math.inf, "inf": math.inf}
        requests["deadline_s"] = chunk.numbers("deadline_s", "a number of seconds, or nothing", missing=none)
    if chunk.has(late := _column_name(chunk, "late_per_h")):
        expected = "money for each hour late, at least 0, or nothing"
        requests["late_per_h"] = chunk.numbers(late, expected, low=0.0, missing={"": 0.0})
    if chunk.has("priority"):
        requests["priority"] = chunk.numbers("priority", "a number", missing={"": 0.0})
    for name, unit in _COUNTED.items():
        if chunk.has(name):
            requests[name] = chunk.whole(name, f"a whole number of {unit}, at least 0", 0, {"": 0.0})
    for name, unit in (("noise", "samples"), ("cpus", "cores"), ("mem_gib", "GiB")):
        if chunk.has(name):
            expected = f"a number of {unit}, at least 0"
            requests[name] = chunk.numbers(name, expected, low=0.0, missing={"": 0.0})
    if chunk.has("always_fuse"):
        flags = chunk.whole("always_fuse", "0 or 1", 0, {"": 0.0})
        words = chunk.words("always_fuse")
        chunk.reject(flags > 1, partial(_describe_problem, "always_fuse", words, "expected 0 or 1"))
        requests["always_fuse"] = flags > 0
    requests |= _checkpoints(chunk)
    _check_bounds(chunk, requests)
    return requests


def _checkpoints(chunk: Chunk) -> dict[str, Any]:
    """Return the columns about checkpoints and preemption."""
    columns: dict[str, Any] = {}
    if chunk.has("preemptible"):
        columns["preemptible"] = chunk.numbers(
            "preemptible", "yes, no, or saved (once it has saved)", low=0.0, high=-1.0, missing=_PREEMPTIBLE
        ).astype(np.int64)
    if chunk.has("checkpoint_s"):
        columns["checkpoint_s"] = chunk.numbers(
            "checkpoint_s",
            "seconds above 0 between checkpoints, stop (at every stop) or never",
            low=_ABOVE_0,
            missing={"never": -1.0, "stop": 0.0, "": 0.0},
        )
    if chunk.has("min_runtime_s"):
        expected = "a number of seconds, at least 0, or nothing"
        columns["min_runtime_s"] = chunk.numbers("min_runtime_s", expected, low=0.0, missing={"": 0.0})
    return columns


def _recorded(chunk: Chunk) -> dict[str, Any]:
    """Return the columns of the recorded schedule; those of times may be empty."""
    columns: dict[str, Any] = {name: chunk.labels(name) for name in RECORDED_WORDS}
    for name in ("start_s", "end_s"):
        if chunk.has(name):
            columns[name] = chunk.numbers(name, "a number of seconds, or nothing", missing={"": math.nan})
    if chunk.has("start_s"):
        submit_s = chunk.numbers("submit_s", "a number of seconds")
        chunk.not_before("start_s", columns["start_s"], "submit_s", submit_s)
    if chunk.has("start_s", "end_s"):
        chunk.not_before("end_s", columns["end_s"], "start_s", columns["start_s"])
    if chunk.has("time_limit_s"):
        expected = "a number of seconds above 0, inf (unlimited), or nothing"
        none = {"": math.nan, "inf": math.inf}
        columns["time_limit_s"] = chunk.numbers("time_limit_s", expected, low=_ABOVE_0, missing=none)
    if chunk.has("requeues"):
        columns["requeues"] = chunk.whole("requeues", "a whole number, at least 0", 0, {"": 0.0})
    if chunk.has("energy_j"):
        expected = "a number of joules above 0, or nothing"
        columns["energy_j"] = chunk.numbers("energy_j", expected, low=_ABOVE_0, missing={"": math.nan})
    return columns


def _check_bounds(chunk: Chunk, requests: dict[str, Any]) -> None:
    """Reject jobs that request fewer or more GPUs or samples than their own bounds allow."""
    known = {"gpus": chunk.gpus("gpus"), "batch": 0, **requests}
    for name, of, sign in (("min_gpus", "gpus", 1), ("max_gpus", "gpus", -1), ("max_batch", "batch", -1)):
        if name in requests:
            bad = (requests[name] > 0) & (sign * requests[name] > sign * known[of])
            bound = "most" if sign > 0 else "least"
            values, expected = chunk.words(name), f"expected at {bound} {of}, or nothing"
            chunk.reject(bad, partial(_describe_problem, name, values, expected))


def _describe_problem(name: str, values: Sequence[str], expected: str, row: int) -> str:
    return f"{name} is {values[row]!r}, {expected}"


PLAIN_CSV = Format(
    name="csv",
    says="Wattline's own CSV: submit_s, gpus, and duration_s or steps and step_s; more columns if known",
    recognises=_recognises,
    chunks=_chunks,
    draft=_draft,
)
