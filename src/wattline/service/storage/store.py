"""What the service knows, in one SQLite file: an append-only list of events, and what follows from them.

Events are the truth. The table of jobs is a fold over them, kept in the same transaction, so that both are
always of one moment; `rebuild` makes it again from the events. One process writes; an accepted event is on
the disk before anybody is told so.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from wattline.errors import ConfigError, StoreError
from wattline.service.storage.projection import COLUMNS, TABLES, Folded, fold

SCHEMA = 1
_TABLES = """
CREATE TABLE event (
  seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL, job TEXT, data TEXT NOT NULL);
CREATE INDEX event_of ON event (job, seq);
CREATE TABLE epoch (number INTEGER PRIMARY KEY, at_s REAL NOT NULL, header TEXT NOT NULL);
CREATE TABLE round (epoch INTEGER NOT NULL, number INTEGER NOT NULL, line TEXT NOT NULL,
  PRIMARY KEY (epoch, number)) WITHOUT ROWID;
CREATE TABLE meter (at_s REAL NOT NULL, team TEXT NOT NULL, joules REAL NOT NULL);
CREATE TABLE token (hash TEXT PRIMARY KEY, name TEXT NOT NULL, user TEXT NOT NULL, role TEXT NOT NULL,
  made_s REAL NOT NULL, expires_s REAL);
"""
_MIGRATIONS: dict[int, str] = {}
"""What brings a file of that schema to the next one."""
_FULL = (sqlite3.OperationalError, sqlite3.DatabaseError, OSError)


@dataclass(frozen=True)
class Happened:
    """One event, as it is written."""

    at_s: float
    kind: str
    job: str | None
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Stored(Happened):
    """One event, as it is read: with its number."""

    seq: int

    def public(self) -> Stored:
        """What others may see: of environments only the names."""
        work = self.data.get("asked", {}).get("work", {})
        if not work.get("env"):
            return self
        hidden = {**work, "env": dict.fromkeys(work["env"], "…")}
        return replace(self, data={**self.data, "asked": {**self.data["asked"], "work": hidden}})


_Work = tuple[list[Happened], list[tuple[str, tuple[Any, ...]]], "Future[int]"]


class Store:
    """The file, open for writing; `with` closes it. Any thread may read and write."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock = path, lock
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()  # who reads takes one
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._writer_connection = self._connect()
        self._broken = ""
        try:
            self._prepare()
        except BaseException:
            self._writer_connection.close()
            raise
        self._writer = threading.Thread(target=self._write_all, name="wattline-store", daemon=True)
        self._writer.start()

    @classmethod
    def open(cls, folder: str | Path) -> Store:
        """The store of a folder, made if it is missing; refused while another process has it."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.chmod(folder, 0o755)  # jobs of others keep their checkpoints below it
            os.close(os.open(folder / "state.db", os.O_WRONLY | os.O_CREAT, 0o600))
            os.chmod(folder / "state.db", 0o600)  # environments have secrets
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be used to keep the state: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.read(lock, 100).decode(errors="replace").strip()
            os.close(lock)
            raise ConfigError(
                f"{folder}: process {other or '?'} serves it already", "stop that one, or give another --dir"
            ) from None
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            return cls(folder / "state.db", lock)
        except (sqlite3.Error, OSError) as error:
            os.close(lock)
            raise ConfigError(f"{folder / 'state.db'}: cannot be used: {error}") from None
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Write what is waiting, and let others have it."""
        if self._lock < 0:
            return
        self._work.put(None)
        self._writer.join()
        while not self._idle.empty():
            self._idle.get().close()
        self._writer_connection.close()
        os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing

    def append(
        self, *events: Happened, also: Sequence[tuple[str, tuple[Any, ...]]] = (), wait: bool = True
    ) -> int:
        """Add events, all or none; answers the number of the last when they are on the disk.

        *also* are statements of the same transaction. Many callers at once share one write. With *wait* false
        it answers at once; what cannot be written then is told by the next who waits.
        """
        done: Future[int] = Future()
        self._work.put((list(events), list(also), done))
        return done.result() if wait else 0

    def _write_all(self) -> None:
        """The one writer: takes whatever has gathered, and writes it at once."""
        while True:
            first = self._work.get()
            if first is None:
                return
            batch, over = [first], False
            while len(batch) < 256:
                try:
                    more = self._work.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    over = True
                    break
                batch.append(more)
            self._write(batch)
            if over:
                return

    def _write(self, batch: list[_Work]) -> None:
        try:
            with self._transaction():
                answers = [self._put(events, also) for events, also, _ in batch]
        except Exception as error:
            if len(batch) > 1:  # one bad request must not take the others down
                for one in batch:
                    self._write([one])
                return
            problem = f"{self.path}: cannot be written: {error}"
            self._broken = problem
            batch[0][2].set_exception(StoreError(problem, "is the disk full, or read-only?"))
            return
        self._broken = ""
        for (_, _, done), answer in zip(batch, answers, strict=True):
            done.set_result(answer)

    def _put(self, events: Iterable[Happened], also: Iterable[tuple[str, tuple[Any, ...]]]) -> int:
        connection, seq = self._writer_connection, 0
        for event in events:
            row = (
                event.at_s,
                event.kind,
                event.job,
                json.dumps(event.data, separators=(",", ":"), allow_nan=False),
            )
            seq = int(
                connection.execute(
                    "INSERT INTO event (at_s, kind, job, data) VALUES (?, ?, ?, ?)", row
                ).lastrowid
                or 0
            )
            fold(connection, event.at_s, event.kind, event.job, event.data)
        for statement, values in also:
            connection.execute(statement, values)
        return seq

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._writer_connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    @property
    def problem(self) -> str:
        """Why the last write failed; empty: it did not."""
        return self._broken

    # -- reading

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What a question to the file gives."""
        try:
            reader = self._idle.get_nowait()
        except queue.Empty:
            reader = self._connect()
            reader.execute("PRAGMA query_only=ON")
        try:
            return reader.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: cannot be read: {error}") from None
        finally:
            self._idle.put(reader)

    def job(self, job: str) -> Folded | None:
        """One job; None: there is none."""
        found = self.jobs("id = ?", (job,))
        return found[0] if found else None

    def jobs(self, where: str = "1", values: Sequence[Any] = (), limit: int = -1) -> list[Folded]:
        """Those of whom that is true, by the order in which they came."""
        names = ", ".join(COLUMNS)
        found = self.rows(f"SELECT {names} FROM job WHERE {where} ORDER BY number LIMIT ?", (*values, limit))
        return [Folded.of(row) for row in found]

    def events(self, after: int = 0, job: str | None = None, limit: int = 1000) -> list[Stored]:
        """What happened after event number *after*, to a job or at all."""
        of, values = ("AND job = ?", (job,)) if job is not None else ("", ())
        found = self.rows(
            f"SELECT seq, at_s, kind, job, data FROM event WHERE seq > ? {of} ORDER BY seq LIMIT ?",
            (after, *values, limit),
        )
        return [Stored(at_s, kind, who, json.loads(data), seq) for seq, at_s, kind, who, data in found]

    def last_s(self) -> float:
        """When something last happened; 0: never."""
        return float(self.rows("SELECT coalesce(max(at_s), 0) FROM event")[0][0])

    def setting(self, name: str) -> Any:
        """The newest value that an event `set` gave; None: none."""
        found = self.rows("SELECT value FROM setting WHERE name = ?", (name,))
        return json.loads(found[0][0]) if found else None

    def rebuild(self) -> None:
        """Fold all events anew; for files whose table of jobs is not to be trusted."""
        connection = self._writer_connection
        with self._transaction():
            for table in ("job", "setting", "answered"):
                connection.execute(f"DELETE FROM {table}")
            for at_s, kind, job, data in connection.execute(
                "SELECT at_s, kind, job, data FROM event ORDER BY seq"
            ).fetchall():
                fold(connection, at_s, kind, job, json.loads(data))

    # -- the file

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=30.0, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def _prepare(self) -> None:
        connection = self._writer_connection
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA:
            raise ConfigError(
                f"{self.path}: has schema {version}, expected at most {SCHEMA}",
                "it was written by a newer version of wattline: use that",
            )
        with self._transaction():
            if version == 0:
                for statement in (_TABLES + TABLES).split(";")[:-1]:
                    connection.execute(statement)
            for step in range(version, SCHEMA) if version else ():
                for statement in _MIGRATIONS[step].split(";")[:-1]:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version={SCHEMA}")
