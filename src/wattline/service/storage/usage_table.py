"""GPU time of users and teams in the store: the table `usage`, in buckets of an hour.

The table is written when an attempt ends, in the transaction of that event. Attempts that run are added when
it is read. So it counts attempts that ran on while no process served the folder, and it survives the
deletion of old jobs and events.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator

from wattline.core.usage import BUCKET_S, KEPT_S

ENDS = ("stopped", "retry", "ended")
"""Kinds of events that end an attempt."""
_DAY_S = 86_400.0
_FINE_S = 8 * _DAY_S  # age up to which buckets are read by the hour; older ones by the day

UsageRow = tuple[float, float, str, str, float]
"""Start, end, team, user and GPU-seconds of a bucket."""

_RUNNING = "SELECT id, team, user, start_s, allocation FROM job WHERE state = 'RUNNING'"


def charge_attempt(connection: sqlite3.Connection, at_s: float, job: str | None) -> None:
    """Add the GPU time of a job's attempt, which ends at *at_s*, before its row in `job` changes.

    The members of an array have one user and team; the last of them to end is charged.
    """
    found = connection.execute(f"{_RUNNING} AND id = ?", (job,)).fetchone()
    if found is None or found[3] is None:
        return
    _, team, user, start_s, allocation = found
    gpus, others = _read_allocation(allocation)
    for other in others:
        row = connection.execute(f"{_RUNNING} AND id = ?", (other,)).fetchone()
        if row is not None and job in _read_allocation(row[4])[1]:
            return
    for from_s, used in split_into_buckets(float(start_s), at_s, gpus):
        connection.execute(
            "INSERT INTO usage VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET gpu_s = gpu_s + excluded.gpu_s",
            (from_s, team, user, used),
        )
    connection.execute("DELETE FROM usage WHERE from_s < ?", (at_s - KEPT_S - _DAY_S,))


def read_usage(connection: sqlite3.Connection, now_s: float) -> list[UsageRow]:
    """Return the buckets of ended attempts, and of those that run, until *now_s*."""
    fine_s = math.floor((now_s - _FINE_S) / _DAY_S) * _DAY_S
    rows: list[UsageRow] = []
    for from_s, team, user, used in connection.execute(
        "SELECT CAST(from_s / ? AS INTEGER) * ?, team, user, sum(gpu_s) FROM usage WHERE from_s < ?"
        " GROUP BY 1, 2, 3",
        (_DAY_S, _DAY_S, fine_s),
    ):
        rows.append((from_s, from_s + _DAY_S, team, user, used))
    for from_s, team, user, used in connection.execute("SELECT * FROM usage WHERE from_s >= ?", (fine_s,)):
        rows.append((from_s, from_s + BUCKET_S, team, user, used))
    arrays: set[str] = set()
    for job, team, user, start_s, allocation in connection.execute(_RUNNING).fetchall():
        gpus, others = _read_allocation(allocation)
        if start_s is None or job in arrays:
            continue
        arrays.update(others)
        for from_s, used in split_into_buckets(max(float(start_s), fine_s), now_s, gpus):
            rows.append((from_s, from_s + BUCKET_S, team, user, used))
    return rows


def split_into_buckets(start_s: float, end_s: float, gpus: int) -> Iterator[tuple[float, float]]:
    """Yield the start of each bucket between two times, and the GPU-seconds in it."""
    from_s = math.floor(start_s / BUCKET_S) * BUCKET_S
    while from_s < end_s and gpus:
        held_s = min(end_s, from_s + BUCKET_S) - max(start_s, from_s)
        if held_s > 0:
            yield from_s, gpus * held_s
        from_s += BUCKET_S


def _read_allocation(text: str) -> tuple[int, list[str]]:
    """Return the number of GPUs of an allocation, and the other members of its array."""
    allocation = json.loads(text)
    return len(allocation.get("gpus", ())), list(allocation.get("fused_with", ()))
