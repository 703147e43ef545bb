"""Schema of the SQLite file: its version, its tables, and the migrations from earlier versions.

The tables `event`, `epoch`, `round`, `meter`, `power_sample`, `token`, `session` and `usage` are written
directly. The tables `job`, `setting` and `idempotency_key` are a projection of the events, so a migration
rewrites the events only.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattline.errors import ConfigError
from wattline.service.storage.projection import rebuild_projection

VERSION = 3

_SOURCE_TABLES = """
CREATE TABLE event (
  seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL, job TEXT, data TEXT NOT NULL);
CREATE INDEX event_of ON event (job, seq);
CREATE TABLE epoch (number INTEGER PRIMARY KEY, at_s REAL NOT NULL, header TEXT NOT NULL);
CREATE TABLE round (epoch INTEGER NOT NULL, number INTEGER NOT NULL, line TEXT NOT NULL,
  PRIMARY KEY (epoch, number)) WITHOUT ROWID;
CREATE TABLE meter (at_s REAL NOT NULL, team TEXT NOT NULL, joules REAL NOT NULL);
CREATE TABLE token (hash TEXT PRIMARY KEY, name TEXT NOT NULL, user TEXT NOT NULL, role TEXT NOT NULL,
  created_s REAL NOT NULL, expires_s REAL);
CREATE TABLE power_sample (at_s REAL NOT NULL, node TEXT NOT NULL, gpu INTEGER NOT NULL, power_w REAL,
  cap_w REAL, jobs TEXT NOT NULL, PRIMARY KEY (at_s, node, gpu)) WITHOUT ROWID;
CREATE TABLE usage (from_s REAL NOT NULL, team TEXT NOT NULL, user TEXT NOT NULL, gpu_s REAL NOT NULL,
  PRIMARY KEY (from_s, team, user)) WITHOUT ROWID;
"""
_PROJECTED_TABLES = """
CREATE TABLE job (
  number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, held INTEGER NOT NULL,
  cancelled INTEGER NOT NULL,
  name TEXT NOT NULL, user TEXT NOT NULL, team TEXT NOT NULL, priority REAL NOT NULL, sweep TEXT NOT NULL,
  submit_s REAL NOT NULL, first_start_s REAL, start_s REAL, end_s REAL, starts INTEGER NOT NULL,
  kill_count INTEGER NOT NULL, retry_at_s REAL, completed_fraction REAL NOT NULL, service_s REAL NOT NULL,
  energy_j REAL, energy_method TEXT NOT NULL, exit_code INTEGER, message TEXT NOT NULL, fuse TEXT NOT NULL,
  submission TEXT NOT NULL, allocation TEXT NOT NULL, results TEXT NOT NULL,
  withheld INTEGER NOT NULL, matrix TEXT NOT NULL, max_parallel INTEGER NOT NULL, depends_on TEXT NOT NULL);
CREATE INDEX job_withheld ON job (number) WHERE withheld;
CREATE INDEX job_state ON job (state, number);
CREATE INDEX job_sweep ON job (sweep);
CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE idempotency_key (
  key TEXT PRIMARY KEY, request_hash TEXT NOT NULL, jobs TEXT NOT NULL, at_s REAL NOT NULL);
"""


_SESSION_TABLE = """
CREATE TABLE IF NOT EXISTS session (hash TEXT PRIMARY KEY, token TEXT NOT NULL, expires_s REAL NOT NULL);
"""
"""Sessions of browsers, with the hash of their token. Earlier versions of the service ignore the table."""
_LIST_INDEXES = """
CREATE INDEX IF NOT EXISTS job_list ON job (team, user, state, name, id, sweep, submit_s, end_s);
CREATE INDEX IF NOT EXISTS job_name ON job (name COLLATE NOCASE, number);
CREATE INDEX IF NOT EXISTS job_gpus ON job (json_extract(submission, '$.columns.gpus'), number);
CREATE INDEX IF NOT EXISTS job_energy ON job (energy_j, number);
"""
"""All that filters of lists read, so that they do not read whole rows, and the orders that cost most."""


def prepare_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new file, or migrate those of an earlier version.

    The caller holds a transaction. A file of a newer version raises `ConfigError` and stays as it is.
    """
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise ConfigError(
            f"{path}: has schema version {version}, expected at most {VERSION}",
            "a newer version of wattline wrote this file: use that version, or another --dir",
        )
    _execute_all(connection, _SESSION_TABLE)
    if version == VERSION:
        _execute_all(connection, _LIST_INDEXES)
        return
    if version == 0:
        _execute_all(connection, _SOURCE_TABLES + _PROJECTED_TABLES)
    else:
        for step in range(version, VERSION):
            MIGRATIONS[step](connection)
        _execute_all(connection, _PROJECTED_TABLES)
        rebuild_projection(connection)
    _execute_all(connection, _LIST_INDEXES)
    connection.execute(f"PRAGMA user_version={VERSION}")


def _execute_all(connection: sqlite3.Connection, statements: str) -> None:
    # Not executescript: it would commit the caller's transaction.
    for statement in statements.split(";")[:-1]:
        connection.execute(statement)


def _drop(connection: sqlite3.Connection, *tables: str) -> None:
    for table in tables:
        connection.execute(f"DROP TABLE IF EXISTS {table}")


# -- version 1 to 2: names of columns, event kinds and payload keys

_KINDS_1_TO_2 = {"set": "setting", "answered": "idempotency_key"}
_RESULT_KEYS_1_TO_2 = {
    "done": "completed_fraction",
    "method": "energy_method",
    "code": "exit_code",
    "fired": "sent_signal",
    "kills": "kill_count",
    "due_s": "retry_at_s",
}
_KEYS_1_TO_2: dict[str, dict[str, str]] = {
    "accepted": {"asked": "submission"},
    "started": {"with": "fused_with"},
    "stopped": _RESULT_KEYS_1_TO_2,
    "retry": _RESULT_KEYS_1_TO_2,
    "ended": _RESULT_KEYS_1_TO_2,
    "answered": {"request": "request_hash"},
    "token": {"made": "created"},
    "service": {"what": "event"},
}
_SUBMISSION_KEYS_1_TO_2 = {"work": "spec", "asks": "columns"}
_SPEC_KEYS_1_TO_2 = {"words": "command"}


def _migrate_1_to_2(connection: sqlite3.Connection) -> None:
    _drop(connection, "job", "setting", "answered")
    connection.execute("ALTER TABLE token RENAME COLUMN made_s TO created_s")
    events = connection.execute("SELECT seq, kind, data FROM event").fetchall()
    connection.executemany(
        "UPDATE event SET kind = ?, data = ? WHERE seq = ?",
        (
            (
                _KINDS_1_TO_2.get(kind, kind),
                json.dumps(_data_1_to_2(kind, json.loads(data)), separators=(",", ":")),
                seq,
            )
            for seq, kind, data in events
            if kind in _KEYS_1_TO_2 or kind in _KINDS_1_TO_2
        ),
    )


def _data_1_to_2(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    data = _rename_keys(data, _KEYS_1_TO_2.get(kind, {}))
    if kind == "accepted":
        submission = _rename_keys(data["submission"], _SUBMISSION_KEYS_1_TO_2)
        # Version 1 marked a requested array by "!" at the end of its fusion key.
        columns = {**submission["columns"], "always_fuse": data["fuse"].endswith("!")}
        spec = _rename_keys(submission["spec"], _SPEC_KEYS_1_TO_2)
        data |= {
            "submission": {**submission, "spec": spec, "columns": columns},
            "fuse": data["fuse"].rstrip("!"),
        }
    return data


def _rename_keys(data: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in data.items()}


# -- version 2 to 3: new tables and columns

_ADDED_IN_3 = """
CREATE TABLE power_sample (at_s REAL NOT NULL, node TEXT NOT NULL, gpu INTEGER NOT NULL, power_w REAL,
  cap_w REAL, jobs TEXT NOT NULL, PRIMARY KEY (at_s, node, gpu)) WITHOUT ROWID;
CREATE TABLE usage (from_s REAL NOT NULL, team TEXT NOT NULL, user TEXT NOT NULL, gpu_s REAL NOT NULL,
  PRIMARY KEY (from_s, team, user)) WITHOUT ROWID;
"""


def _migrate_2_to_3(connection: sqlite3.Connection) -> None:
    _drop(connection, "job", "setting", "idempotency_key")
    _execute_all(connection, _ADDED_IN_3)


MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {1: _migrate_1_to_2, 2: _migrate_2_to_3}
"""Migrations by the version they start from. Each drops the projected tables and rewrites the others."""
