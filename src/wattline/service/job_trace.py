"""The jobs of a service as a trace, for what-if studies of its own history."""

from __future__ import annotations

import csv
from pathlib import Path

from wattline.errors import Conflict
from wattline.service.storage.queries import StoreReader

_COLUMNS = (
    "id", "submit_s", "gpus", "duration_s", "team", "user", "model", "batch", "status", "start_s", "end_s",
    "time_limit_s", "name",
)  # fmt: skip


def write_job_trace(store: StoreReader, path: Path, since_s: float) -> int:
    """Write the jobs that were submitted since a time and have ended, and return their number.

    A job's duration is the time that it ran, over all attempts.
    """
    rows = store.read_rows(
        "SELECT id, submit_s, submission->>'$.columns.gpus', service_s, team, user,"
        " submission->>'$.columns.model', submission->>'$.columns.batch', state, first_start_s, end_s,"
        " submission->>'$.spec.time_limit_s', name FROM job"
        " WHERE end_s IS NOT NULL AND first_start_s IS NOT NULL AND service_s > 0 AND submit_s >= ?"
        " ORDER BY number",
        (since_s,),
    )
    if not rows:
        raise Conflict("no job has run and ended in this time", "upload a trace, or choose a longer time")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(_COLUMNS)
        writer.writerows(["" if value is None else value for value in row] for row in rows)
    return len(rows)


def count_ended_jobs(store: StoreReader) -> int:
    """Return the number of jobs that `write_job_trace` would write of all times."""
    found = store.read_rows(
        "SELECT count(*) FROM job WHERE end_s IS NOT NULL AND first_start_s IS NOT NULL AND service_s > 0"
    )
    return int(found[0][0])
