"""Microsoft's ITP traces, and those that ElasticFlow derived from them with models and deadlines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wattline.core.table import Floats
from wattline.trace.builder import Draft, seconds_per_step
from wattline.trace.field_parser import Chunk
from wattline.trace.format import Format, Head
from wattline.trace.row_reader import delimited

_SUBMIT = ("submission_time", "submit_time")
_STEPS = ("real_iteration", "num_iteration", "iteration")
_DURATION = ("real_duration", "duration")
_DEADLINE = ("deadline", "ddl")


def _recognises(head: Head) -> bool:
    header = set(head.fields(","))
    raw = {"job_id", "submission_time", "duration", "num_gpu"} == header
    derived = {"job_id", "num_gpu", "model_name", "batch_size", "duration"} <= header
    return raw or (derived and not header.isdisjoint(_DEADLINE))


def _draft(chunk: Chunk) -> Draft:
    submit_s = chunk.seconds(_present(chunk, _SUBMIT))
    modelled = chunk.has("model_name")
    return Draft(
        id=chunk.ids("job_id"),
        submit_s=submit_s,
        gpus=chunk.gpus("num_gpu"),
        **_work(chunk, modelled),
        deadline_s=_deadlines_s(chunk) if modelled else None,
        batch=chunk.whole("batch_size", "a whole number of samples, at least 1", 1) if modelled else None,
        model=chunk.labels("model_name"),
    )


def _present(chunk: Chunk, names: tuple[str, ...]) -> str:
    """Return the name that the header uses for a column with several names."""
    return next((name for name in names if chunk.has(name)), names[0])


def _work(chunk: Chunk, modelled: bool) -> dict[str, Any]:
    field = _present(chunk, _DURATION)
    duration_s = chunk.seconds(field)
    if not modelled:
        return {"duration_s": duration_s}
    counted = _present(chunk, _STEPS)
    steps = chunk.numbers(counted, "a number of iterations, at least 1", low=1.0)
    return {"steps": steps, "step_s": seconds_per_step(chunk, steps, duration_s, field)}


def _deadlines_s(chunk: Chunk) -> Floats:
    deadline_s = chunk.numbers(_present(chunk, _DEADLINE), "a number of seconds", missing={"": math.inf})
    if chunk.has("best_effort"):
        effort = chunk.numbers("best_effort", "0 or 1", low=0.0, high=1.0)
        deadline_s = np.where(effort == 1, math.inf, deadline_s)
    return deadline_s


ITP = Format(
    name="itp",
    says="Microsoft ITP: job_id, submission_time, duration, num_gpu; ElasticFlow's with model_name, ddl, …",
    recognises=_recognises,
    chunks=delimited,
    draft=_draft,
)
