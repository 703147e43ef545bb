"""SenseTime's Helios trace: one row per job with dates; CPU-only jobs are ignored."""

from __future__ import annotations

import numpy as np

from wattline.trace.builder import Draft
from wattline.trace.field_parser import NEVER_STARTED, NOT_ENDED, SECONDS, Chunk
from wattline.trace.format import Format, header_has
from wattline.trace.row_reader import delimited

_NEVER = ("", "None", "NaT", "nan")


def _draft(chunk: Chunk) -> Draft:
    submit_s = chunk.moments("submit_time", missing=())
    start_s, end_s = chunk.moments("start_time", _NEVER), chunk.moments("end_time", _NEVER)
    chunk.ignore(np.isnan(start_s), NEVER_STARTED)
    chunk.ignore(np.isnan(end_s), NOT_ENDED)
    chunk.not_before("start_time", start_s, "submit_time", submit_s)
    chunk.not_before("end_time", end_s, "start_time", start_s)
    return Draft(
        id=chunk.ids("job_id"),
        submit_s=submit_s,
        gpus=chunk.gpus_or_none("gpu_num"),
        duration_s=chunk.numbers("duration", SECONDS, low=0.0, missing={"": 0.0}),
        team=chunk.labels("vc"),
        user=chunk.labels("user"),
        status=chunk.labels("state"),
        start_s=start_s,
        end_s=end_s,
        nodes=chunk.labels("node_num"),
    )


HELIOS = Format(
    name="helios",
    says="SenseTime Helios' cluster_log.csv: job_id, user, vc, gpu_num, …, state, submit_time, …, duration",
    recognises=header_has("job_id", "gpu_num", "state", "submit_time", "start_time", "end_time", "duration"),
    chunks=delimited,
    draft=_draft,
    wall_clock=True,
)
