"""The store: one SQLite file with an append-only list of events and the tables derived from them.

Events are the source of truth. The projected tables change in the same transaction, so both always show the
same moment, and `rebuild` derives them again. One process writes; when `append` returns, the events are on
the disk.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from wattline.errors import ConfigError, StoreError
from wattline.service.storage.events import NewEvent, PowerSample
from wattline.service.storage.projection import apply_event, rebuild_projection
from wattline.service.storage.queries import StoreReader, connect
from wattline.service.storage.schema import prepare_schema
from wattline.service.storage.usage_table import ENDS, charge_attempt

_KEPT_EPOCHS = 100
_BATCH_LIMIT = 256  # requests that share one transaction
_Statement = tuple[str, Sequence[Any]]
_WriteRequest = tuple[list[NewEvent], list[_Statement], "Future[int]"]


class _Maintenance(NamedTuple):
    """Work on the connection outside of transactions."""

    run: Callable[[sqlite3.Connection], None]
    done: Future[None]


class Store(StoreReader):
    """The file, open for writing; `with` closes it. Any thread may read and write."""

    def __init__(self, path: Path, lock: int) -> None:
        super().__init__(path)
        self._lock = lock
        self._requests: queue.SimpleQueue[_WriteRequest | _Maintenance | None] = queue.SimpleQueue()
        self._writer_connection = connect(path)
        self._problem = ""
        self._listeners: list[Callable[[], object]] = []
        try:
            self._writer_connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # of a new file only
            with self._transaction():
                prepare_schema(self._writer_connection, path)
            self.last_seq = self._read_last_seq()
        except BaseException:
            self._writer_connection.close()
            raise
        self._writer = threading.Thread(target=self._run_writer, name="wattline-store", daemon=True)
        self._writer.start()

    @classmethod
    def open(cls, folder: str | Path) -> Store:
        """Open the store of a folder, created if it is missing; raise if another process has it open."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.chmod(folder, 0o755)  # jobs of other users keep their checkpoints below it
            os.close(os.open(folder / "state.db", os.O_WRONLY | os.O_CREAT, 0o600))
            os.chmod(folder / "state.db", 0o600)  # environments may hold secrets
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"{folder}: cannot hold the state of a service: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.read(lock, 100).decode(errors="replace").strip()
            os.close(lock)
            raise ConfigError(
                f"{folder}: process {other or '?'} serves it already",
                "stop that process, or pass another --dir",
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
        """Finish the writes that are queued, and release the lock."""
        if self._lock < 0:
            return
        self._requests.put(None)
        self._writer.join()
        self.close_readers()
        self._writer_connection.close()
        os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def problem(self) -> str:
        """The error of the last write; empty: it succeeded."""
        return self._problem

    def add_listener(self, listener: Callable[[], object]) -> None:
        """Call *listener* after every write of events, in the writing thread: it has to return at once."""
        self._listeners.append(listener)

    def _read_last_seq(self) -> int:
        return int(self._writer_connection.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()[0])

    # -- writes; each call is one transaction, and returns when it is on the disk

    def append(self, *events: NewEvent) -> int:
        """Write events, all or none, and return the sequence number of the last."""
        return self._write(events)

    def append_and_reset_meter(self, *events: NewEvent) -> None:
        """Write events, and delete the meter readings so far."""
        self._write(events, [("DELETE FROM meter", ())])

    def add_epoch(self, epoch: int, at_s: float, header: str, first_round: str = "") -> None:
        """Write the header of an epoch and its round 0, if it has one; the oldest epochs are deleted."""
        oldest = epoch - _KEPT_EPOCHS
        statements: list[_Statement] = [
            ("INSERT INTO epoch VALUES (?, ?, ?)", (epoch, at_s, header)),
            ("DELETE FROM round WHERE epoch <= ?", (oldest,)),
            ("DELETE FROM epoch WHERE number <= ?", (oldest,)),
        ]
        if first_round:
            statements.append(("INSERT INTO round VALUES (?, ?, ?)", (epoch, 0, first_round)))
        self._write((), statements)

    def add_round(self, epoch: int, number: int, line: str) -> None:
        """Write one round of an epoch's run log."""
        self._write((), [("INSERT INTO round VALUES (?, ?, ?)", (epoch, number, line))])

    def add_meter_readings(self, readings: Iterable[tuple[float, str, float]]) -> None:
        """Write meter readings: time, team (`*`: all teams) and joules."""
        self._write((), [("INSERT INTO meter VALUES (?, ?, ?)", row) for row in readings])

    def add_power_samples(self, samples: Iterable[PowerSample]) -> None:
        """Write power samples of GPUs, in one transaction."""
        statement = "INSERT OR REPLACE INTO power_sample VALUES (?, ?, ?, ?, ?, ?)"
        self._write((), [(statement, (*one[:-1], ",".join(one.jobs))) for one in samples])

    def delete_power_samples(self, before_s: float) -> None:
        """Delete the power samples that are older than *before_s*."""
        self._write((), [("DELETE FROM power_sample WHERE at_s < ?", (before_s,))])

    def add_token(
        self, event: NewEvent, hash: str, name: str, user: str, role: str, expires_s: float | None
    ) -> None:
        """Write a token, created at the time of *event*."""
        row = (hash, name, user, role, event.at_s, expires_s)
        self._write((event,), [("INSERT INTO token VALUES (?, ?, ?, ?, ?, ?)", row)])

    def delete_tokens(self, event: NewEvent, name: str) -> None:
        """Delete all tokens of a name."""
        self._write((event,), [("DELETE FROM token WHERE name = ?", (name,))])

    def rotate_token(self, event: NewEvent, name: str, hash: str, until_s: float) -> None:
        """Add a token like the current one of *name*, which expires at *until_s* or is deleted."""
        ends_now = until_s <= event.at_s
        current = "SELECT hash FROM token WHERE name = ? ORDER BY created_s DESC, rowid DESC LIMIT 1"
        copy = f"SELECT ?, name, user, role, ?, expires_s FROM token WHERE hash = ({current})"
        old = "name = ? AND hash != ?"
        expire = f"UPDATE token SET expires_s = min(coalesce(expires_s, ?), ?) WHERE {old}"
        self._write(
            (event,),
            [
                (f"INSERT INTO token {copy}", (hash, event.at_s, name)),
                (f"DELETE FROM token WHERE {old}", (name, hash))
                if ends_now
                else (expire, (until_s, until_s, name, hash)),
            ],
        )

    def delete(self, *statements: _Statement) -> None:
        """Execute statements that delete rows."""
        self.execute(*statements)

    def execute(self, *statements: _Statement) -> None:
        """Execute statements in one transaction."""
        self._write((), statements)

    def run_maintenance(self, run: Callable[[sqlite3.Connection], None]) -> None:
        """Call *run* with the connection, between two transactions."""
        done: Future[None] = Future()
        self._requests.put(_Maintenance(run, done))
        done.result()

    def rebuild(self) -> None:
        """Derive the projected tables again from all events."""
        with self._transaction():
            rebuild_projection(self._writer_connection)

    # -- the writer thread

    def _write(self, events: Iterable[NewEvent], statements: Iterable[_Statement] = ()) -> int:
        written: Future[int] = Future()
        self._requests.put((list(events), list(statements), written))
        return written.result()

    def _run_writer(self) -> None:
        """Write the requests that have gathered since the last write as one transaction."""
        while True:
            first = self._requests.get()
            if first is None:
                return
            if isinstance(first, _Maintenance):
                self._maintain(first)
                continue
            batch, closing, maintenance = [first], False, None
            while len(batch) < _BATCH_LIMIT:
                try:
                    request = self._requests.get_nowait()
                except queue.Empty:
                    break
                if request is None:
                    closing = True
                    break
                if isinstance(request, _Maintenance):
                    maintenance = request
                    break
                batch.append(request)
            self._write_batch(batch)
            if maintenance is not None:
                self._maintain(maintenance)
            if closing:
                return

    def _maintain(self, maintenance: _Maintenance) -> None:
        try:
            maintenance.run(self._writer_connection)
        except sqlite3.Error as error:
            maintenance.done.set_exception(StoreError(f"{self.path}: {error}"))
        else:
            maintenance.done.set_result(None)

    def _write_batch(self, batch: list[_WriteRequest]) -> None:
        try:
            with self._transaction():
                numbers = [self._execute(events, statements) for events, statements, _ in batch]
        except Exception as error:
            if len(batch) > 1:  # one bad request must not fail the others
                for request in batch:
                    self._write_batch([request])
                return
            self._problem = f"{self.path}: cannot be written: {error}"
            batch[0][2].set_exception(
                StoreError(self._problem, "check free space and permissions of that disk")
            )
            return
        self._problem = ""
        self.last_seq = max(self.last_seq, *numbers)
        for (_, _, written), number in zip(batch, numbers, strict=True):
            written.set_result(number)
        if any(numbers):
            for listener in self._listeners:
                listener()

    def _execute(self, events: Iterable[NewEvent], statements: Iterable[_Statement]) -> int:
        connection, seq = self._writer_connection, 0
        for event in events:
            data = json.dumps(event.data, separators=(",", ":"), allow_nan=False)
            cursor = connection.execute(
                "INSERT INTO event (at_s, kind, job, data) VALUES (?, ?, ?, ?)",
                (event.at_s, event.kind, event.job, data),
            )
            seq = int(cursor.lastrowid or 0)
            if event.kind in ENDS:
                charge_attempt(connection, event.at_s, event.job)
            apply_event(connection, event.at_s, event.kind, event.job, event.data)
        for statement, values in statements:
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
