"""Pollux' workloads: an application, its replicas and its batch, without durations.

Iterations to finish and seconds per iteration are predicted from fits to the authors' measurements.
"""

from __future__ import annotations

import numpy as np

from wattline.core.table import Labels
from wattline.measurement.settings import Settings
from wattline.trace import work_estimates
from wattline.trace.builder import Draft
from wattline.trace.field_parser import Chunk
from wattline.trace.format import Format, header_has
from wattline.trace.row_reader import delimited

_TIMED_ON = "t4"
_NODE_GPUS = 4  # of the machines on which Pollux ran


def _draft(chunk: Chunk) -> Draft:
    gpus = chunk.gpus("num_replicas")
    batch = chunk.whole("batch_size", "a whole number of samples, at least 1", 1)
    application = Labels.of(chunk.words("application"))
    settings = Settings.of(gpus=gpus, nodes=np.ceil(gpus / _NODE_GPUS), batch=batch)
    step_s = batch / work_estimates.predict_samples_s("pollux", _TIMED_ON, application, settings)
    known = ", ".join(work_estimates.list_models("pollux"))
    chunk.reject(
        np.isnan(step_s), lambda row: f"application is {application.word(row)!r}, expected one of {known}"
    )
    return Draft(
        id=chunk.ids("name"),
        submit_s=chunk.seconds("time"),
        gpus=gpus,
        steps=np.nan_to_num(
            work_estimates.predict_pollux_steps(application, batch.astype(np.float64)), nan=1.0
        ),
        step_s=np.nan_to_num(step_s, nan=1.0),
        batch=batch,
        model=application,
    )


POLLUX = Format(
    name="pollux",
    says="Pollux: name, time, application, num_replicas, batch_size",
    recognises=header_has("name", "time", "application", "num_replicas", "batch_size"),
    chunks=delimited,
    draft=_draft,
    timed_on=_TIMED_ON,
)
