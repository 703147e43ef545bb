"""What follows from events: how each job is now.

accepted ─► PENDING ─► RUNNING ─► SUCCEEDED, FAILED, CANCELLED, TIMEOUT, OUT_OF_MEMORY, NODE_FAIL
               ▲          │
               └──────────┘ stopped for others, killed and tried again
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TABLES = """
CREATE TABLE job (
  number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, held INTEGER NOT NULL,
  cancelled INTEGER NOT NULL,
  name TEXT NOT NULL, user TEXT NOT NULL, team TEXT NOT NULL, priority REAL NOT NULL, sweep TEXT NOT NULL,
  submit_s REAL NOT NULL, first_s REAL, start_s REAL, end_s REAL, starts INTEGER NOT NULL,
  kills INTEGER NOT NULL, due_s REAL, done REAL NOT NULL, service_s REAL NOT NULL,
  energy_j REAL, method TEXT NOT NULL, code INTEGER, message TEXT NOT NULL, fuse TEXT NOT NULL,
  asked TEXT NOT NULL, given TEXT NOT NULL, told TEXT NOT NULL);
CREATE INDEX job_state ON job (state, number);
CREATE INDEX job_sweep ON job (sweep);
CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE answered (key TEXT PRIMARY KEY, request TEXT NOT NULL, jobs TEXT NOT NULL, at_s REAL NOT NULL);
"""
COLUMNS = (
    *(
        "number",
        "id",
        "state",
        "held",
        "cancelled",
        "name",
        "user",
        "team",
        "priority",
        "sweep",
        "submit_s",
        "first_s",
    ),
    *("start_s", "end_s", "starts", "kills", "due_s", "done", "service_s", "energy_j", "method", "code"),
    *("message", "fuse", "asked", "given", "told"),
)


@dataclass(frozen=True)
class Folded:
    """One job as it is now."""

    number: int
    id: str
    state: str
    held: bool
    cancelled: bool  # somebody wants it to end
    name: str
    user: str
    team: str
    priority: float
    sweep: str
    submit_s: float
    first_s: float | None
    start_s: float | None
    end_s: float | None
    starts: int
    kills: int
    due_s: float | None
    done: float
    service_s: float
    energy_j: float | None
    method: str
    code: int | None
    message: str
    fuse: str
    asked: dict[str, Any]  # what was submitted: work, and what it asks of the scheduler
    given: dict[str, Any]  # on what it ran last
    told: dict[str, Any]  # metrics

    @classmethod
    def of(cls, row: Sequence[Any]) -> Folded:
        """From a row of the table."""
        words = dict(zip(COLUMNS, row, strict=True))
        for name in ("asked", "given", "told"):
            words[name] = json.loads(words[name])
        return cls(**{**words, "held": bool(words["held"]), "cancelled": bool(words["cancelled"])})


def fold(
    connection: sqlite3.Connection, at_s: float, kind: str, job: str | None, data: Mapping[str, Any]
) -> None:
    """Let one event change the tables; kinds that change nothing are only remembered."""
    change = _CHANGES.get(kind)
    if change is not None:
        change(connection, at_s, job, data)


def _accepted(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    asked = data["asked"]
    connection.execute(
        "INSERT INTO job VALUES (?,?,'PENDING',?,0,?,?,?,?,?,?,NULL,NULL,NULL,0,0,NULL,0,0,0,'',NULL,'',?,?,"
        "'{}','{}')",
        (
            int(str(job)),
            job,
            int(data.get("held", False)),
            data["name"],
            data["user"],
            data["team"],
            data["priority"],
            data["sweep"],
            data["submit_s"],
            data["fuse"],
            json.dumps(asked),
        ),
    )


def _started(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute(
        "UPDATE job SET state='RUNNING', held=0, start_s=?, first_s=coalesce(first_s, ?), starts=?, given=?,"
        " message='' WHERE id=? AND state IN ('PENDING', 'RUNNING')",
        (at_s, at_s, data["attempt"], json.dumps(data), job),
    )


def _retuned(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute("UPDATE job SET given=json_patch(given, ?) WHERE id=?", (json.dumps(data), job))


def _facts(data: Mapping[str, Any]) -> tuple[Any, ...]:
    told = {name: data[name] for name in ("metrics", "batch", "found_cap_w") if data.get(name)}
    return (
        data["done"],
        data["service_s"],
        data["energy_j"],
        data["method"],
        data.get("code"),
        data["message"],
        json.dumps(told),
    )


_SET_FACTS = "done=?, service_s=?, energy_j=?, method=?, code=?, message=?, told=?"


def _stopped(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute(
        "UPDATE job SET state='PENDING', due_s=?, kills=?+kills*?, fuse=coalesce(?, fuse),"
        f" {_SET_FACTS} WHERE id=? AND state IN ('PENDING', 'RUNNING')",
        (
            data.get("due_s"),
            data.get("kills", 0),
            int("kills" not in data),
            data.get("fuse"),
            *_facts(data),
            job,
        ),
    )


def _ended(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute(
        f"UPDATE job SET state=?, end_s=?, {_SET_FACTS} WHERE id=? AND state IN ('PENDING', 'RUNNING')",
        (data["state"], at_s, *_facts(data), job),
    )


def _hold(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute("UPDATE job SET held=? WHERE id=?", (int(data["held"]), job))


def _cancel(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute("UPDATE job SET cancelled=1 WHERE id=?", (job,))


def _priority(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute("UPDATE job SET priority=? WHERE id=?", (data["priority"], job))


def _set(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO setting VALUES (?, ?)", (data["name"], json.dumps(data["value"]))
    )


def _answered(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO answered VALUES (?, ?, ?, ?)",
        (data["key"], data["request"], json.dumps(data["jobs"]), at_s),
    )


_CHANGES = {
    "accepted": _accepted,
    "started": _started,
    "retuned": _retuned,
    "stopped": _stopped,
    "retry": _stopped,
    "ended": _ended,
    "hold": _hold,
    "cancel": _cancel,
    "priority": _priority,
    "set": _set,
    "answered": _answered,
}
