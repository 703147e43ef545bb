"""A Philly job list in CSV: one row per job, submission in seconds, `vc` as team."""

from __future__ import annotations

from wattline.trace.builder import Draft
from wattline.trace.field_parser import Chunk
from wattline.trace.format import Format, header_has
from wattline.trace.row_reader import delimited


def _draft(chunk: Chunk) -> Draft:
    return Draft(
        id=chunk.ids("job_id"),
        submit_s=chunk.seconds("submit_s"),
        gpus=chunk.gpus("gpus"),
        duration_s=chunk.seconds("duration_s"),
        team=chunk.labels("vc"),
    )


PHILLY_CSV = Format(
    name="philly-csv",
    says="Microsoft Philly as CSV: job_id, vc, submit_time, submit_s, gpus, duration_s",
    recognises=header_has("job_id", "vc", "submit_s", "gpus", "duration_s"),
    chunks=delimited,
    draft=_draft,
)
