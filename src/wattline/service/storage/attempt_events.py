"""Reads of the events that begin and end attempts, for metrics and bills."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from wattline.service.storage.queries import StoreReader
from wattline.service.storage.usage_table import ENDS

_KINDS = ("started", "retuned", *ENDS)
_MARKS = ", ".join("?" * len(_KINDS))


class AttemptEvent(NamedTuple):
    """An event at the start, at a change of caps, or at the end of an attempt, with facts of its job."""

    seq: int
    at_s: float
    kind: str  # started, retuned, stopped, retry or ended
    job: str
    data: Mapping[str, Any]
    team: str
    submit_s: float


def read_new_attempt_events(store: StoreReader, after: int, limit: int) -> list[AttemptEvent]:
    """Return at most *limit* events with a larger sequence number than *after*, in order."""
    found = store.read_rows(
        "SELECT event.seq, event.at_s, event.kind, event.job, event.data, job.team, job.submit_s"
        " FROM event JOIN job ON job.id = event.job"
        f" WHERE event.seq > ? AND event.kind IN ({_MARKS}) ORDER BY event.seq LIMIT ?",
        (after, *_KINDS, limit),
    )
    return [_build(row) for row in found]


def read_attempt_events_between(store: StoreReader, since_s: float, until_s: float) -> list[AttemptEvent]:
    """Return the events of every job that was submitted before *until_s* and had not ended by *since_s*."""
    found = store.read_rows(
        "SELECT event.seq, event.at_s, event.kind, event.job, event.data, job.team, job.submit_s"
        " FROM job JOIN event ON event.job = job.id"
        " WHERE job.submit_s < ? AND (job.end_s IS NULL OR job.end_s > ?) AND job.starts > 0"
        f" AND event.kind IN ({_MARKS}) ORDER BY event.seq",
        (until_s, since_s, *_KINDS),
    )
    return [_build(row) for row in found]


def _build(row: tuple[Any, ...]) -> AttemptEvent:
    seq, at_s, kind, job, data, team, submit_s = row
    return AttemptEvent(seq, at_s, kind, job, json.loads(data), team, submit_s)
