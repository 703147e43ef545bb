"""Projection of the events onto the tables `job`, `setting` and `idempotency_key`.

accepted ─► PENDING ─► RUNNING ─► SUCCEEDED, FAILED, CANCELLED, TIMEOUT, OUT_OF_MEMORY, NODE_FAIL
               ▲          │
               └──────────┘ preempted, killed and retried
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from wattline.service.states import LIVE_STATES

_LIVE = ", ".join(f"'{state}'" for state in LIVE_STATES)
_JSON_COLUMNS = ("submission", "allocation", "results", "matrix", "depends_on")
_BOOL_COLUMNS = ("held", "withheld", "cancelled")


@dataclass(frozen=True)
class JobRow:
    """A row of the table `job`: the current state of one job. Its fields are the columns, in order."""

    number: int
    id: str
    state: str
    held: bool
    cancelled: bool  # its end was requested, and it may still run
    name: str
    user: str
    team: str
    priority: float
    sweep: str  # id of the first job of its sweep; empty: no sweep
    submit_s: float
    first_start_s: float | None
    start_s: float | None
    end_s: float | None
    starts: int
    kill_count: int
    retry_at_s: float | None
    completed_fraction: float
    service_s: float
    energy_j: float | None  # of ended attempts; None: unknown, as some was not counted
    energy_method: str
    exit_code: int | None
    message: str
    fuse: str  # equal for jobs that may be trained as one array; empty: none
    submission: dict[
        str, Any
    ]  # `spec`: fields of `JobSpec` without id; `columns`: one value per column of `Jobs`
    allocation: dict[
        str, Any
    ]  # of the current or the last attempt: gpus, kind, cap_w, batch, cpus, fused_with
    results: dict[str, Any]  # of the last attempt: metrics, batch, found_cap_w, signal and others
    withheld: bool = False  # it waits for its dependencies, or for a place in its sweep
    matrix: dict[str, Any] = field(default_factory=dict)  # its values of the sweep's matrix
    max_parallel: int = 0  # jobs of its sweep that may run at once; 0: no limit
    depends_on: list[dict[str, str]] = field(default_factory=list)  # `job` or `sweep`, and `when`

    @classmethod
    def from_columns(cls, row: Sequence[Any]) -> JobRow:
        """Build a row from the values of COLUMNS."""
        values = dict(zip(COLUMNS, row, strict=True))
        values |= {name: json.loads(values[name]) for name in _JSON_COLUMNS}
        values |= {name: bool(values[name]) for name in _BOOL_COLUMNS}
        return cls(**values)


COLUMNS = tuple(one.name for one in fields(JobRow))


def apply_event(
    connection: sqlite3.Connection, at_s: float, kind: str, job: str | None, data: Mapping[str, Any]
) -> None:
    """Update the projected tables by one event; kinds without a rule change nothing."""
    rule = _RULES.get(kind)
    if rule is not None:
        rule(connection, at_s, job, data)


def rebuild_projection(connection: sqlite3.Connection) -> None:
    """Empty the projected tables and apply all events again."""
    for table in ("job", "setting", "idempotency_key"):
        connection.execute(f"DELETE FROM {table}")
    events = connection.execute("SELECT at_s, kind, job, data FROM event ORDER BY seq").fetchall()
    for at_s, kind, job, data in events:
        apply_event(connection, at_s, kind, job, json.loads(data))


def _accept(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    values = {
        "number": int(str(job)),
        "id": job,
        "state": "PENDING",
        "held": int(data.get("held", False)),
        "cancelled": 0,
        **{name: data[name] for name in ("name", "user", "team", "priority", "sweep", "submit_s", "fuse")},
        "starts": 0,
        "kill_count": 0,
        "completed_fraction": 0,
        "service_s": 0,
        "energy_j": 0,
        "energy_method": "",
        "message": "",
        "submission": json.dumps(data["submission"]),
        "allocation": "{}",
        "results": "{}",
        "withheld": int(data.get("withheld", False)),
        "matrix": json.dumps(data.get("matrix", {})),
        "max_parallel": data.get("max_parallel", 0),
        "depends_on": json.dumps(data.get("depends_on", []), separators=(",", ":")),
    }
    connection.execute(
        f"INSERT INTO job ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
        tuple(values.values()),
    )


def _start(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute(
        "UPDATE job SET state='RUNNING', held=0, withheld=0, start_s=?,"
        " first_start_s=coalesce(first_start_s, ?), starts=?, allocation=?, message=''"
        f" WHERE id=? AND state IN ({_LIVE})",
        (at_s, at_s, data["attempt"], json.dumps(data), job),
    )


def _retune(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute(
        "UPDATE job SET allocation=json_patch(allocation, ?) WHERE id=?", (json.dumps(data), job)
    )


_SET_RESULTS = (
    "completed_fraction=?, service_s=?, energy_j=?, energy_method=?, exit_code=?, message=?, results=?"
)


_RESULT_NAMES = (
    *("metrics", "batch", "found_cap_w", "signal", "saves", "yields"),
    *("startup_s", "restart_s", "crash"),
)


def _results(data: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of _SET_RESULTS from the payload of an attempt that ended."""
    results = {name: data[name] for name in _RESULT_NAMES if data.get(name) or data.get(name) is False}
    return (
        data["completed_fraction"],
        data["service_s"],
        data["energy_j"],
        data["energy_method"],
        data.get("exit_code"),
        data["message"],
        json.dumps(results),
    )


def _requeue(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute(
        "UPDATE job SET state='PENDING', retry_at_s=?, kill_count=coalesce(?, kill_count),"
        f" fuse=coalesce(?, fuse), {_SET_RESULTS} WHERE id=? AND state IN ({_LIVE})",
        (data.get("retry_at_s"), data.get("kill_count"), data.get("fuse"), *_results(data), job),
    )


def _end(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute(
        f"UPDATE job SET state=?, end_s=?, {_SET_RESULTS} WHERE id=? AND state IN ({_LIVE})",
        (data["state"], at_s, *_results(data), job),
    )


def _notice(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute(f"UPDATE job SET message=? WHERE id=? AND state IN ({_LIVE})", (data["message"], job))


def _hold(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    values = int(data["held"]), data.get("withheld"), job
    connection.execute("UPDATE job SET held=?, withheld=coalesce(?, withheld) WHERE id=?", values)


def _admit(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute("UPDATE job SET withheld=0 WHERE id=?", (job,))


def _cancel(connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]) -> None:
    connection.execute("UPDATE job SET cancelled=1 WHERE id=?", (job,))


def _prioritise(
    connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]
) -> None:
    connection.execute("UPDATE job SET priority=? WHERE id=?", (data["priority"], job))


def _change_setting(
    connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]
) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO setting VALUES (?, ?)", (data["name"], json.dumps(data["value"]))
    )


def _remember_key(
    connection: sqlite3.Connection, at_s: float, job: str | None, data: Mapping[str, Any]
) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO idempotency_key VALUES (?, ?, ?, ?)",
        (data["key"], data["request_hash"], json.dumps(data["jobs"]), at_s),
    )


_RULES = {
    "accepted": _accept,
    "started": _start,
    "retuned": _retune,
    "stopped": _requeue,
    "retry": _requeue,
    "ended": _end,
    "notice": _notice,
    "hold": _hold,
    "admitted": _admit,
    "cancel": _cancel,
    "priority": _prioritise,
    "setting": _change_setting,
    "idempotency_key": _remember_key,
}
