"""Traces of Gavel and Shockwave: tab-separated, a job type and its steps.

Three layouts, distinguished by the number of columns. Only the one of Shockwave has durations; elsewhere
the seconds per step are predicted for V100s from the job type, its batch and its GPUs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from wattline.core.table import Floats, Ints, Labels
from wattline.errors import TraceError
from wattline.measurement.settings import Settings
from wattline.trace import work_estimates
from wattline.trace.builder import Draft, seconds_per_step
from wattline.trace.field_parser import Chunk
from wattline.trace.file_source import ArchiveMember
from wattline.trace.format import Format, Head
from wattline.trace.row_reader import Report, delimited

_TIMED_ON = "v100"
_START = ("job_type", "command")
_LAYOUTS = {
    7: (*_START, "num_steps_arg", "needs_data_dir", "total_steps", "arrival_time", "scale_factor"),
    10: (
        *(*_START, "working_directory", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor"),
        *("priority_weight", "SLO", "arrival_time"),
    ),
    12: (
        *(*_START, "working_directory", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor"),
        *("mode", "priority_weight", "SLO", "duration", "arrival_time"),
    ),
}
_TYPE = re.compile(r"(.+?)(?: \(batch size (\d{1,15})\))?")


def _recognises(head: Head) -> bool:
    rows = [line.split("\t") for line in head.lines]
    return 2 * sum(len(row) in _LAYOUTS and " " in row[1] for row in rows) > len(rows)


def _chunks(member: ArchiveMember, report: Report) -> Iterator[Chunk]:
    widths = [line.count("\t") + 1 for line in Head.of(member.data).lines]
    width = max(widths, key=widths.count, default=0)
    if width not in _LAYOUTS:
        raise TraceError(member.label, 1, f"has {width} columns between tabs, expected 7, 10 or 12")
    return delimited(member, report, delimiter="\t", names=_LAYOUTS[width])


def _draft(chunk: Chunk) -> Draft:
    family, batch = _types(chunk)
    gpus = chunk.gpus("scale_factor")
    steps = chunk.numbers("total_steps", "a number of steps, at least 1", low=1.0)
    submit_s = chunk.seconds("arrival_time")
    step_s = _step_s(chunk, family, batch, gpus, steps)
    return Draft(
        id=chunk.numbered(),
        submit_s=submit_s,
        gpus=gpus,
        steps=steps,
        step_s=step_s,
        deadline_s=_deadlines_s(chunk, submit_s, steps * step_s) if chunk.has("SLO") else None,
        priority=chunk.numbers("priority_weight", "a number") if chunk.has("priority_weight") else None,
        batch=batch,
        model=family,
    )


def _types(chunk: Chunk) -> tuple[Labels, Ints]:
    """Split `ResNet-50 (batch size 64)` into family and batch; some families have no batch."""
    types = Labels.of(chunk.words("job_type"))
    matches = [_TYPE.fullmatch(name) for name in types.names]
    families = [name if match is None else match[1] for name, match in zip(types.names, matches, strict=True)]
    batches = [0 if match is None else int(match[2] or 0) for match in matches]
    return Labels.of(families[code] for code in types.codes.tolist()), np.array(batches)[types.codes]


def _step_s(chunk: Chunk, family: Labels, batch: Ints, gpus: Ints, steps: Floats) -> Floats:
    if chunk.has("duration"):
        return seconds_per_step(chunk, steps, chunk.seconds("duration"), "duration")
    each = np.maximum(batch, 1).astype(np.float64)  # of one GPU; families without a batch count steps
    settings = Settings.of(gpus=gpus, batch=each * gpus)
    step_s = each / work_estimates.predict_samples_s(
        "gavel", _TIMED_ON, family, settings
    )  # of all GPUs together
    known = ", ".join(work_estimates.list_models("gavel"))
    chunk.reject(
        np.isnan(step_s),
        lambda row: f"job_type is {chunk.words('job_type')[row]!r}, expected one of {known}",
    )
    return np.nan_to_num(step_s, nan=1.0)


def _deadlines_s(chunk: Chunk, submit_s: Floats, duration_s: Floats) -> Floats:
    """Return the deadlines: an SLO is a multiple of the run time; below 0 there is none."""
    slo = chunk.numbers("SLO", "a multiple of the run time, or -1")
    return np.where(slo < 0, math.inf, submit_s + slo * duration_s)


GAVEL = Format(
    name="gavel",
    says="Gavel and Shockwave: job_type, command, … between tabs, 7, 10 or 12 columns, without a header",
    recognises=_recognises,
    chunks=_chunks,
    draft=_draft,
    timed_on=_TIMED_ON,
)
