"""Messages that are to be delivered, in a SQLite file of their own, so that restarts lose none."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wattline.errors import ConfigError

_TABLES = """
CREATE TABLE IF NOT EXISTS message (
  id TEXT PRIMARY KEY, url TEXT NOT NULL, event TEXT NOT NULL, body TEXT NOT NULL, created_s REAL NOT NULL,
  tries INTEGER NOT NULL DEFAULT 0, due_s REAL NOT NULL, problem TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS seen (key TEXT PRIMARY KEY, at_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL);
"""
_SEEN_S = 400 * 86400.0  # time after which a budget that was exhausted is forgotten


class Message(NamedTuple):
    """A message to one URL. Its id is the same in every try."""

    id: str
    url: str
    event: str  # end, failure or budget
    body: str
    created_s: float
    tries: int
    due_s: float
    problem: str


class Outbox:
    """The file; calls from any thread."""

    def __init__(self, path: Path, first_seq: int) -> None:
        """Open the file, created if it is missing; then events after *first_seq* count."""
        try:
            path.touch(mode=0o600)
            self._connection = sqlite3.connect(
                path, timeout=30.0, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.executescript(_TABLES)
            self._connection.execute("INSERT OR IGNORE INTO position VALUES (1, ?)", (first_seq,))
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{path}: cannot hold the messages of webhooks: {error}") from None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(statement, values).fetchall()

    @property
    def position(self) -> int:
        """Sequence number of the last event that was looked at."""
        return int(self._rows("SELECT seq FROM position")[0][0])

    def add(
        self,
        messages: Sequence[tuple[str, str, str, Mapping[str, Any]]],
        at_s: float,
        position: int | None = None,
        key: str = "",
    ) -> None:
        """Store messages (id, URL, event, content) with a *position* or a *key*, all or nothing.

        Nothing is stored if the key was seen before.
        """
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                if key:
                    self._connection.execute("DELETE FROM seen WHERE at_s < ?", (at_s - _SEEN_S,))
                    new = self._connection.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (key, at_s))
                    messages = messages if new.rowcount else ()
                self._connection.executemany(
                    "INSERT OR IGNORE INTO message (id, url, event, body, created_s, due_s)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (id, url, event, json.dumps(content), at_s, at_s)
                        for id, url, event, content in messages
                    ],
                )
                if position is not None:
                    self._connection.execute("UPDATE position SET seq = ?", (position,))
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise

    def due(self, now_s: float, limit: int = 100) -> list[Message]:
        """Return the messages that are due, the oldest first."""
        rows = self._rows("SELECT * FROM message WHERE due_s <= ? ORDER BY created_s LIMIT ?", now_s, limit)
        return [Message._make(row) for row in rows]

    def next_due_s(self) -> float | None:
        """Return when the next message is due; None: there is none."""
        found = self._rows("SELECT min(due_s) FROM message")[0][0]
        return None if found is None else float(found)

    def count(self) -> int:
        """Return the number of messages that are not delivered."""
        return int(self._rows("SELECT count(*) FROM message")[0][0])

    def remove(self, message: str) -> None:
        """Delete a message that was delivered, or given up."""
        self._rows("DELETE FROM message WHERE id = ?", message)

    def postpone(self, message: str, due_s: float, problem: str) -> None:
        """Store that a try failed, and when the next is due."""
        self._rows(
            "UPDATE message SET tries = tries + 1, due_s = ?, problem = ? WHERE id = ?",
            due_s,
            problem,
            message,
        )
