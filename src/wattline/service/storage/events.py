"""Records of the tables `event` and `power_sample`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class PowerSample(NamedTuple):
    """A row of the table `power_sample`: one GPU at one time, or over a time from *at_s*."""

    at_s: float
    node: str
    gpu: int  # index on the machine
    power_w: float | None  # mean since the sample before; None: it could not be read
    cap_w: float | None
    jobs: tuple[str, ...]  # ids of the jobs with processes on it


AUDIT_KINDS = ("cancel", "hold", "priority", "setting", "token", "prune")
"""Kinds of events that record what operators did: the audit log reads them, and retention keeps them."""


@dataclass(frozen=True)
class NewEvent:
    """An event to be written. Kinds that `projection` does not know are stored and change no table."""

    at_s: float
    kind: str
    job: str | None  # None: an event of the service itself
    data: Mapping[str, Any]


@dataclass(frozen=True)
class StoredEvent(NewEvent):
    """An event that was read back, with its sequence number."""

    seq: int

    def redacted(self) -> StoredEvent:
        """Return the event without the values of environment variables, which may be secrets."""
        return replace(self, data=_hide_environment(self.data))


def redact_submission(data: str) -> str:
    """Return the JSON of an event `accepted` without the values of environment variables."""
    content = json.loads(data)
    hidden = _hide_environment(content)
    return data if hidden is content else json.dumps(hidden)


def _hide_environment(data: Mapping[str, Any]) -> Mapping[str, Any]:
    submission = data.get("submission", {})
    hidden = dict(submission)
    if env := submission.get("spec", {}).get("env"):
        hidden["spec"] = {**submission["spec"], "env": dict.fromkeys(env, "…")}
    if submission.get("notify"):  # the URL of a webhook may hold a secret
        hidden["notify"] = "…"
    return data if hidden == submission else {**data, "submission": hidden}
