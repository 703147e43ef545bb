"""Muri's traces: rows like ElasticFlow's with times in milliseconds."""

from __future__ import annotations

from wattline.trace.builder import Draft, seconds_per_step
from wattline.trace.field_parser import Chunk
from wattline.trace.format import Format, header_has
from wattline.trace.row_reader import delimited

_MS_PER_S = 1000.0
_MILLISECONDS = "a number of milliseconds, at least 0"


def _draft(chunk: Chunk) -> Draft:
    steps = chunk.numbers("iterations", "a number of iterations, at least 1", low=1.0)
    duration_s = chunk.numbers("duration", _MILLISECONDS, low=0.0) / _MS_PER_S
    return Draft(
        id=chunk.ids("job_id"),
        submit_s=chunk.numbers("submit_time", _MILLISECONDS, low=0.0) / _MS_PER_S,
        gpus=chunk.gpus("num_gpu"),
        steps=steps,
        # Not the column iteration_time: it is rounded to whole milliseconds.
        step_s=seconds_per_step(chunk, steps, duration_s, "duration"),
        priority=chunk.numbers("priority", "a number", missing={"": 0.0}) if chunk.has("priority") else None,
        batch=chunk.whole("batch_size", "a whole number of samples, at least 0", 0),
        model=chunk.labels("model_name"),
    )


MURI = Format(
    name="muri",
    says="Muri: job_id, num_gpu, submit_time, iterations, model_name, batch_size, duration, … in ms",
    recognises=header_has("job_id", "num_gpu", "submit_time", "iterations", "iteration_time"),
    chunks=delimited,
    draft=_draft,
)
