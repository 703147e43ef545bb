"""Waiting until jobs are over, and how a command ends that waited for them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from wattline.cli.output import bar, tell
from wattline.cli.service.job_text import LIVE
from wattline.errors import Unreachable
from wattline.service.client import PATIENCE_S, Client

Jobs = Sequence[dict[str, Any]]
_FIRST_S, _MOST_S = 0.2, 2.0
_CODES = {"TIMEOUT": 124}


def wait_for(
    client: Client, jobs: Jobs, timeout_s: float | None, *, quiet: bool = False
) -> tuple[list[dict[str, Any]], bool]:
    """The jobs when all are over, or when time is; and whether they are. A service may be away meanwhile."""
    until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    pause_s, heard_s, told = _FIRST_S, time.monotonic(), False
    now = list(jobs)
    # A bar between the lines of a log would be noise.
    with nullcontext(_nothing) if quiet else bar("waiting", len(jobs)) as show:
        while True:
            try:
                now = _look(client, now)
                if told:
                    tell(f"{client.url} answers again")
                heard_s, told = time.monotonic(), False
            except Unreachable as error:
                if time.monotonic() - heard_s > PATIENCE_S:
                    raise
                if not told:
                    tell(f"{error.message}; still waiting")
                    told = True
            show(sum(_share(job) for job in now))
            if all(job["state"] not in LIVE for job in now):
                return now, True
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return now, False
            time.sleep(min(pause_s, left_s))
            pause_s = min(1.5 * pause_s, _MOST_S)


def _nothing(done: float) -> None:
    pass


def _look(client: Client, jobs: Jobs) -> list[dict[str, Any]]:
    if len(jobs) == 1:
        return [client.get(f"/jobs/{jobs[0]['id']}")]
    return client.jobs({"sweep": jobs[0]["id"]})


def _share(job: dict[str, Any]) -> float:
    return float(job["progress"] or 0.0) if job["state"] in LIVE else 1.0


def code_of(job: dict[str, Any]) -> int:
    """Its own exit code; where it has none to tell, one that says how it ended."""
    if job["state"] == "SUCCEEDED":
        return 0
    return int(job["exit_code"] or 0) or _CODES.get(job["state"], 1)


def first_code(jobs: Jobs) -> int:
    """The exit code of the first, by number, that failed."""
    return next((code for code in map(code_of, jobs) if code), 0)
