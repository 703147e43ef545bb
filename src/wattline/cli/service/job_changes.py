"""Messages about jobs that a command waits for: why they wait, and each change."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from wattline.cli.output import notify
from wattline.cli.service.job_text import LIVE, format_gpus, format_reason, format_totals, sanitize
from wattline.core.reasons import Reason
from wattline.errors import WattlineError
from wattline.service.client import Client

_NOT_SCHEDULED = "Not yet scheduled."
_PAGE = 100


class ChangeReporter:
    """Prints the changes of the jobs that a command waits for: all of one job, or sums of several."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reason = ""  # of the one job, without its numbers: some count down
        self._last_event = 0
        self._kinds: frozenset[tuple[str, str]] = frozenset()  # states and reasons of several jobs

    def report(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Print the changes since the last call."""
        if len(jobs) == 1:
            self._report_events(jobs[0]["id"])
            self._report_reason(jobs[0])
            return
        waiting = Counter(format_reason(job) for job in jobs if job["state"] == "PENDING")
        kinds = frozenset((job["state"], "") for job in jobs) | {("PENDING", reason) for reason in waiting}
        if all(state not in LIVE for state, _ in kinds):
            return  # the end is reported by the command
        if kinds != self._kinds and waiting.keys() != {_NOT_SCHEDULED}:
            self._kinds = kinds
            reason = waiting.most_common(1)[0][0] if waiting else ""
            notify(f"{format_totals(jobs)}{f'; most wait: {reason}' if reason else ''}")

    def _report_events(self, job: str) -> None:
        try:
            page = self._client.get("/events", {"job": job, "after": self._last_event, "limit": _PAGE})
        except WattlineError:
            return  # the job itself is what the command waits for
        for event in page["events"]:
            self._last_event = event["seq"]
            text = describe_event(event["kind"], event["data"])
            if text:
                notify(f"job {job} {text}")
                self._reason = ""

    def _report_reason(self, job: Mapping[str, Any]) -> None:
        reason = format_reason(job) if job["state"] == "PENDING" else ""
        same = re.sub(r"[0-9.]+", "", reason)
        if reason in ("", _NOT_SCHEDULED) or same == self._reason:
            return
        self._reason = same
        never = reason == Reason.NEVER_IN_BUDGET.value
        cancel = f" It stays in the queue; to end it: wattline cancel {job['id']}" if never else ""
        notify(f"job {job['id']} is PENDING: {reason}{cancel}")


def describe_event(kind: str, data: Mapping[str, Any]) -> str:
    """Return an event of a job as the rest of a sentence; empty: it is shown otherwise, or of no interest."""
    message = sanitize(str(data.get("message", "")))
    if kind == "started":
        attempt = f", attempt {data['attempt']}" if data.get("attempt", 1) > 1 else ""
        return f"is RUNNING on {format_gpus(data)}{attempt}"
    if kind == "stopped":
        return f"was stopped and waits again: {message or 'other jobs take precedence.'}"
    if kind == "retuned":
        return f"has a power cap of {data['cap_w']:g} W" if data.get("cap_w") else ""
    if kind == "cancel":
        return "is being cancelled"
    return ""
