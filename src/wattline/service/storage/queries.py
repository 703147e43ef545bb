"""Reads of the store, each from any thread."""

from __future__ import annotations

import json
import queue
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wattline.errors import StoreError
from wattline.service.states import LIVE_STATES
from wattline.service.storage.events import AUDIT_KINDS, PowerSample, StoredEvent
from wattline.service.storage.projection import COLUMNS, JobRow
from wattline.service.storage.selection import SELECTED_COLUMNS, JobSelection, SelectedJob, WithheldJob
from wattline.service.storage.team_energy import TeamEnergySums
from wattline.service.storage.usage_table import UsageRow, read_usage

TOKEN_COLUMNS = ("name", "user", "role", "created_s", "expires_s")


def connect(path: Path) -> sqlite3.Connection:
    """Open the file in WAL mode, every commit synced to the disk. The caller begins transactions itself."""
    connection = sqlite3.connect(
        path, timeout=30.0, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


class StoreReader:
    """A pool of read-only connections, and the questions the service asks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self.team_energy = TeamEnergySums(self._rows)

    def close_readers(self) -> None:
        """Close the idle connections."""
        while not self._idle.empty():
            self._idle.get().close()

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        try:
            reader = self._idle.get_nowait()
        except queue.Empty:
            reader = connect(self.path)
            reader.execute("PRAGMA query_only=ON")
        try:
            yield reader
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: cannot be read: {error}") from None
        finally:
            self._idle.put(reader)

    def _rows(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        with self._reader() as reader:
            return reader.execute(statement, values).fetchall()

    def read_rows(
        self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query of another module of the storage."""
        return self._rows(statement, values)

    # -- jobs

    def job(self, job: str) -> JobRow | None:
        """Return one job, or None if no job has that id."""
        found = self._jobs("id = ?", (job,))
        return found[0] if found else None

    def job_state(self, job: str) -> str | None:
        """Return the state of a job, or None if no job has that id."""
        found = self._rows("SELECT state FROM job WHERE id = ?", (job,))
        return str(found[0][0]) if found else None

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        team: str = "",
        user: str = "",
        sweep: str = "",
        after: int = 0,
        limit: int = -1,
    ) -> list[JobRow]:
        """Return the jobs that match all filters, by number; empty filters match every job.

        *after* is a job number; a negative *limit* is no limit.
        """
        where, values = ["number > ?"], list[Any]([after])
        if states:
            where.append(f"state IN ({', '.join('?' * len(states))})")
            values += states
        for column, value in (("team", team), ("user", user), ("sweep", sweep)):
            if value:
                where.append(f"{column} = ?")
                values.append(value)
        return self._jobs(" AND ".join(where), values, limit)

    def live_jobs(self) -> list[JobRow]:
        """Return the jobs that are PENDING or RUNNING."""
        return self.jobs(states=LIVE_STATES)

    def jobs_numbered(self, first: int, last: int) -> list[JobRow]:
        """Return the jobs with numbers from *first* to *last*, both included."""
        return self._jobs("number BETWEEN ? AND ?", (first, last))

    def jobs_with_ids(self, ids: Sequence[str]) -> list[JobRow]:
        """Return the jobs with one of these ids."""
        return self._jobs("id IN (SELECT value FROM json_each(?))", (json.dumps(list(ids)),))

    def select_jobs(self, selection: JobSelection) -> list[SelectedJob]:
        """Return the jobs of a selection, by number."""
        where, values = selection.build_condition()
        found = self._rows(f"SELECT {SELECTED_COLUMNS} FROM job WHERE {where} ORDER BY number", values)
        return [SelectedJob._make(row) for row in found]

    # -- withheld jobs

    def withheld_jobs(self) -> list[WithheldJob]:
        """Return the withheld jobs that are neither held nor cancelled, by priority, then by number."""
        found = self._rows(
            "SELECT id, sweep, max_parallel, depends_on FROM job WHERE withheld AND state = 'PENDING'"
            " AND NOT held AND NOT cancelled ORDER BY priority DESC, number"
        )
        parsed: dict[str, list[dict[str, str]]] = {}  # of a sweep all are equal
        for *_, text in found:
            if text not in parsed:
                parsed[text] = json.loads(text)
        return [WithheldJob(id, sweep, most, parsed[text]) for id, sweep, most, text in found]

    def count_admitted(self, sweeps: Iterable[str]) -> dict[str, int]:
        """Return the number of jobs of each sweep that may run: neither ended, held nor withheld."""
        marks = ", ".join("?" * len(LIVE_STATES))
        return dict(
            self._rows(
                f"SELECT sweep, count(*) FROM job WHERE state IN ({marks}) AND NOT withheld AND NOT held"
                " AND sweep IN (SELECT value FROM json_each(?)) GROUP BY sweep",
                (*LIVE_STATES, json.dumps(sorted(sweeps))),
            )
        )

    def job_states(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the states of jobs by id."""
        statement = "SELECT id, state FROM job WHERE id IN (SELECT value FROM json_each(?))"
        return dict(self._rows(statement, (json.dumps(sorted(ids)),)))

    def sweep_states(self, sweeps: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return the number of jobs in each state that occurs, by sweep."""
        found = self._rows(
            "SELECT sweep, state, count(*) FROM job WHERE sweep IN (SELECT value FROM json_each(?))"
            " GROUP BY sweep, state",
            (json.dumps(sorted(sweeps)),),
        )
        counts: dict[str, dict[str, int]] = {}
        for sweep, state, count in found:
            counts.setdefault(sweep, {})[state] = count
        return counts

    def newest_job_named(self, name: str, user: str) -> str | None:
        """Return the id of the newest job of a user with that name, or None."""
        found = self._rows(
            "SELECT id FROM job WHERE name = ? AND user = ? ORDER BY number DESC LIMIT 1", (name, user)
        )
        return str(found[0][0]) if found else None

    def cancelled_ids(self, first: int, last: int) -> list[str]:
        """Return the ids of the jobs from *first* to *last* that were cancelled."""
        found = self._rows("SELECT id FROM job WHERE cancelled AND number BETWEEN ? AND ?", (first, last))
        return [id for (id,) in found]

    def _jobs(self, where: str, values: Sequence[Any], limit: int = -1) -> list[JobRow]:
        names = ", ".join(COLUMNS)
        found = self._rows(f"SELECT {names} FROM job WHERE {where} ORDER BY number LIMIT ?", (*values, limit))
        return [JobRow.from_columns(row) for row in found]

    def has_live_jobs(self) -> bool:
        """Return whether a job is PENDING or RUNNING."""
        marks = ", ".join("?" * len(LIVE_STATES))
        return bool(self._rows(f"SELECT 1 FROM job WHERE state IN ({marks}) LIMIT 1", LIVE_STATES))

    def count_by_state(self) -> dict[str, int]:
        """Return the number of jobs in each state that occurs."""
        return dict(self._rows("SELECT state, count(*) FROM job GROUP BY state"))

    def last_job_number(self) -> int:
        """Return the largest job number; 0: there are no jobs."""
        return int(self._rows("SELECT coalesce(max(number), 0) FROM job")[0][0])

    def mean_service_s(self, group: str) -> float | None:
        """Return the mean run time of the last five jobs of a recurring group that succeeded."""
        found = self._rows(
            "SELECT avg(service_s) FROM (SELECT service_s FROM job WHERE state = 'SUCCEEDED'"
            " AND json_extract(submission, '$.columns.key') = ? ORDER BY number DESC LIMIT 5)",
            (group,),
        )
        return float(found[0][0]) if found[0][0] else None

    def jobs_of_group(self, group: str, limit: int) -> list[JobRow]:
        """Return the last jobs of a recurring group, the latest first."""
        found = self._rows(
            "SELECT id FROM job WHERE json_extract(submission, '$.columns.key') = ?"
            " ORDER BY number DESC LIMIT ?",
            (group, limit),
        )
        return self.jobs_with_ids([id for (id,) in found])[::-1]

    def idempotent_submission(self, key: str) -> tuple[str, list[str]] | None:
        """Return the request hash and the job ids that an idempotency key stands for, or None."""
        found = self._rows("SELECT request_hash, jobs FROM idempotency_key WHERE key = ?", (key,))
        return (found[0][0], json.loads(found[0][1])) if found else None

    # -- events and settings

    def events(self, after: int = 0, job: str | None = None, limit: int = 1000) -> list[StoredEvent]:
        """Return the events with sequence numbers above *after*, of one job or all, oldest first."""
        found = self.event_texts(after, job, limit)
        return [StoredEvent(at_s, kind, name, json.loads(data), seq) for seq, at_s, kind, name, data in found]

    def event_texts(
        self, after: int, job: str | None, limit: int, until: int | None = None
    ) -> list[tuple[int, float, str, str | None, str]]:
        """Return seq, time, kind, job and JSON data of events, as `events` does, up to the seq *until*."""
        where, values = "seq > ? AND seq <= ?", list[Any]([after, 2**62 if until is None else until])
        if job is not None:
            where, values = f"{where} AND job = ?", [*values, job]
        found = self._rows(
            f"SELECT seq, at_s, kind, job, data FROM event WHERE {where} ORDER BY seq LIMIT ?",
            (*values, limit),
        )
        return [(seq, at_s, kind, name, data) for seq, at_s, kind, name, data in found]

    def last_seq_before(self, at_s: float) -> int:
        """Return a sequence number; the events above it are those from a time on.

        Times never decrease, so it is found by bisection.
        """
        low, high = self._rows("SELECT coalesce(min(seq), 1) - 1, coalesce(max(seq), 0) FROM event")[0]
        start = low
        while low < high:
            middle = (low + high + 1) // 2
            # The event at or before the middle: sequence numbers may have gaps.
            found = self._rows("SELECT at_s FROM event WHERE seq <= ? ORDER BY seq DESC LIMIT 1", (middle,))
            if found and found[0][0] < at_s:
                low = middle
            else:
                high = middle - 1
        return 0 if low == start else int(low)

    def audit_events(self, after: int, since_s: float, limit: int) -> list[StoredEvent]:
        """Return events of `AUDIT_KINDS` with a larger seq than *after* and not before *since_s*."""
        marks = ", ".join("?" * len(AUDIT_KINDS))
        found = self._rows(
            "SELECT seq, at_s, kind, job, data FROM event"
            f" WHERE seq > ? AND at_s >= ? AND kind IN ({marks}) ORDER BY seq LIMIT ?",
            (after, since_s, *AUDIT_KINDS, limit),
        )
        return [StoredEvent(at_s, kind, name, json.loads(data), seq) for seq, at_s, kind, name, data in found]

    def operator_names(self) -> frozenset[str]:
        """Return the names of all tokens that have or had the role operator."""
        created = self._rows(
            "SELECT json_extract(data, '$.created') FROM event"
            " WHERE kind = 'token' AND json_extract(data, '$.role') = 'operator'"
        )
        now = self._rows("SELECT name FROM token WHERE role = 'operator'")
        return frozenset(name for (name,) in (*created, *now) if name)

    def last_event_s(self) -> float:
        """Return the time of the latest event; 0: there are no events."""
        return float(self._rows("SELECT coalesce(max(at_s), 0) FROM event")[0][0])

    def setting(self, name: str) -> Any:
        """Return the current value of a setting, or None if it was never set."""
        found = self._rows("SELECT value FROM setting WHERE name = ?", (name,))
        return json.loads(found[0][0]) if found else None

    # -- decisions

    def last_epoch(self) -> int:
        """Return the number of the latest epoch; 0: there are none."""
        return int(self._rows("SELECT coalesce(max(number), 0) FROM epoch")[0][0])

    def epoch_header(self, epoch: int) -> str | None:
        """Return the header line of an epoch's run log, or None if that epoch is not stored."""
        found = self._rows("SELECT header FROM epoch WHERE number = ?", (epoch,))
        return str(found[0][0]) if found else None

    def epoch_rounds(self, epoch: int) -> list[str]:
        """Return the lines of an epoch's rounds, in order."""
        found = self._rows("SELECT line FROM round WHERE epoch = ? ORDER BY number", (epoch,))
        return [line for (line,) in found]

    # -- meter readings

    def meter_totals(self) -> dict[str, float]:
        """Return the latest joules of each team; the key `*` is all teams."""
        return dict(self._rows("SELECT team, joules FROM meter GROUP BY team HAVING at_s = max(at_s)"))

    def meter_readings(self, since_s: float) -> list[tuple[float, str, float]]:
        """Return time, team and joules of the readings after *since_s*, oldest first."""
        found = self._rows("SELECT at_s, team, joules FROM meter WHERE at_s > ? ORDER BY at_s", (since_s,))
        return [(at_s, team, joules) for at_s, team, joules in found]

    # -- power

    def first_power_s(self, since_s: float, until_s: float) -> float | None:
        """Return the time of the first power sample from *since_s* to before *until_s*; None: none."""
        found = self._rows(
            "SELECT min(at_s) FROM power_sample WHERE at_s >= ? AND at_s < ?", (since_s, until_s)
        )
        return None if found[0][0] is None else float(found[0][0])

    def power_samples(self, since_s: float, until_s: float, step_s: float) -> list[PowerSample]:
        """Return the power samples of every GPU from *since_s* to before *until_s*, in order.

        Samples within one *step_s* are one: with their mean power, the highest cap, and all jobs.
        """
        found = self._rows(
            "SELECT CAST(at_s / ? AS INTEGER), node, gpu, avg(power_w), max(cap_w),"
            " group_concat(DISTINCT nullif(jobs, '')) FROM power_sample"
            " WHERE at_s >= ? AND at_s < ? GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
            (step_s, since_s, until_s),
        )
        return [
            PowerSample(number * step_s, node, gpu, power_w, cap_w, _split_jobs(jobs))
            for number, node, gpu, power_w, cap_w, jobs in found
        ]

    # -- usage of users and teams

    def usage_rows(self, now_s: float) -> list[UsageRow]:
        """Return start, end, team, user and GPU-seconds of all buckets of GPU time until *now_s*."""
        with self._reader() as reader:
            return read_usage(reader, now_s)

    # -- tokens

    def token(self, hash: str) -> tuple[str, str, str, float | None] | None:
        """Return name, user, role and expiry time of the token with that hash, or None."""
        found = self._rows("SELECT name, user, role, expires_s FROM token WHERE hash = ?", (hash,))
        return (found[0][0], found[0][1], found[0][2], found[0][3]) if found else None

    def tokens(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return the tokens of a name, or all, oldest first, without their hashes."""
        where, values = ("WHERE name = ?", (name,)) if name is not None else ("", ())
        columns = ", ".join(TOKEN_COLUMNS)
        found = self._rows(f"SELECT {columns} FROM token {where} ORDER BY created_s, rowid", values)
        return [dict(zip(TOKEN_COLUMNS, row, strict=True)) for row in found]


def _split_jobs(text: str | None) -> tuple[str, ...]:
    return tuple(sorted(set(text.split(",")), key=int)) if text else ()
