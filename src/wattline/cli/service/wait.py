"""Waiting for jobs to end, and the exit code of a command that waited."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from wattline.cli.output import notify, progress_bar
from wattline.cli.service.job_changes import ChangeReporter
from wattline.cli.service.job_text import LIVE
from wattline.errors import Unreachable
from wattline.service.client import PATIENCE_S, Client

Jobs = Sequence[dict[str, Any]]
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0
_EXIT_CODES = {"TIMEOUT": 124}


def wait_for_jobs(
    client: Client, jobs: Jobs, timeout_s: float | None, *, quiet: bool = False
) -> tuple[list[dict[str, Any]], bool]:
    """Wait until all *jobs* have ended, or for *timeout_s*; return the jobs and whether all have ended.

    Changes of the jobs are printed. The service may be unreachable for up to `PATIENCE_S` meanwhile. With
    *quiet* there is no progress bar.
    """
    changes = ChangeReporter(client)
    deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    pause_s, answered_s, unreachable = _FIRST_PAUSE_S, time.monotonic(), False
    now = list(jobs)
    # A bar between the lines of a log would be noise.
    with nullcontext(_ignore) if quiet else progress_bar("waiting", len(jobs)) as update:
        while True:
            try:
                now = _fetch_jobs(client, now)
                if unreachable:
                    notify(f"{client.url} answers again")
                answered_s, unreachable = time.monotonic(), False
                changes.report(now)
            except Unreachable as error:
                if time.monotonic() - answered_s > PATIENCE_S:
                    raise
                if not unreachable:
                    notify(f"{error.message}; still waiting")
                    unreachable = True
            update(sum(_completed_fraction(job) for job in now))
            if all(job["state"] not in LIVE for job in now):
                return now, True
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                return now, False
            time.sleep(min(pause_s, remaining_s))
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)


def _ignore(completed: float) -> None:
    pass


def _fetch_jobs(client: Client, jobs: Jobs) -> list[dict[str, Any]]:
    if len(jobs) == 1:
        return [client.get(f"/jobs/{jobs[0]['id']}")]
    return client.jobs({"sweep": jobs[0]["id"]})


def _completed_fraction(job: dict[str, Any]) -> float:
    return float(job["progress"] or 0.0) if job["state"] in LIVE else 1.0


def job_exit_code(job: dict[str, Any]) -> int:
    """Return the exit code of a job; if it has none, one that matches its state."""
    if job["state"] == "SUCCEEDED":
        return 0
    return int(job["exit_code"] or 0) or _EXIT_CODES.get(job["state"], 1)


def first_exit_code(jobs: Jobs) -> int:
    """Return the exit code of the first job, by id, that failed; 0 if none did."""
    return next((code for code in map(job_exit_code, jobs) if code), 0)
