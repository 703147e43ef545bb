"""Deletion of old rows of the store. Events that the projection of kept rows needs are kept."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from wattline.service.states import FINAL_STATES, LIVE_STATES
from wattline.service.storage.events import AUDIT_KINDS
from wattline.service.storage.store import Store

_FINAL = ", ".join(f"'{state}'" for state in FINAL_STATES)
_LIVE = ", ".join(f"'{state}'" for state in LIVE_STATES)
_IN = "IN (SELECT value FROM json_each(?))"
_AUDIT = ", ".join(f"'{kind}'" for kind in AUDIT_KINDS)
_AUDIT_EXTRA_S = 365 * 86400.0
"""Seconds by which the events of the audit log are kept longer than others."""
# Events of the service itself that are old, without the latest value of each setting and the newest event,
# after which sequence numbers continue.
_OLD_EVENTS = (
    f"job IS NULL AND at_s < ? - iif(kind IN ({_AUDIT}), {_AUDIT_EXTRA_S}, 0)"
    " AND seq < (SELECT max(seq) FROM event) AND NOT (kind = 'setting' AND seq IN"
    " (SELECT max(seq) FROM event WHERE kind = 'setting' GROUP BY json_extract(data, '$.name')))"
)
# An epoch ends when the next one begins.
_OLD_EPOCHS = (
    "number < (SELECT coalesce(max(number), 0) FROM epoch)"
    " AND (SELECT min(at_s) FROM epoch AS next WHERE next.number > epoch.number) < ?"
)
_NEEDED = f"""
  number = (SELECT max(number) FROM job)
  OR (sweep <> '' AND sweep IN (SELECT sweep FROM job WHERE state IN ({_LIVE})))
  OR id IN (SELECT one.value->>'job' FROM job AS live, json_each(live.depends_on) AS one
            WHERE live.state IN ({_LIVE}) AND live.depends_on <> '[]')
  OR sweep IN (SELECT one.value->>'sweep' FROM job AS live, json_each(live.depends_on) AS one
               WHERE live.state IN ({_LIVE}) AND live.depends_on <> '[]')
"""


class EndedJob(NamedTuple):
    """A job that has ended; *needed*: it must be kept, see `retention`."""

    id: str
    end_s: float
    needed: bool


class StorePruner:
    """Counts and deletes old rows."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def ended_jobs(self) -> list[EndedJob]:
        """Return the jobs that have ended, the first to end first."""
        found = self._store.read_rows(
            f"SELECT id, coalesce(end_s, submit_s), {_NEEDED} FROM job WHERE state IN ({_FINAL})"
            " ORDER BY coalesce(end_s, submit_s), number"
        )
        return [EndedJob(id, end_s, bool(needed)) for id, end_s, needed in found]

    def job_ids(self) -> set[str]:
        """Return the ids of all jobs."""
        return {id for (id,) in self._store.read_rows("SELECT id FROM job")}

    def count_jobs(self) -> int:
        """Return the number of jobs."""
        return int(self._store.read_rows("SELECT count(*) FROM job")[0][0])

    def last_number(self) -> int:
        """Return the largest job number."""
        return self._store.last_job_number()

    def count_events(self, jobs: Sequence[str], before_s: float) -> int:
        """Return the number of events of *jobs*, and of old events of the service itself."""
        of_jobs = self._store.read_rows(f"SELECT count(*) FROM event WHERE job {_IN}", (_list(jobs),))
        old = self._store.read_rows(f"SELECT count(*) FROM event WHERE {_OLD_EVENTS}", (before_s,))
        return int(of_jobs[0][0]) + int(old[0][0])

    def count_epochs(self, before_s: float) -> int:
        """Return the number of epochs that ended before a time."""
        return int(
            self._store.read_rows(f"SELECT count(*) FROM epoch WHERE {_OLD_EPOCHS}", (before_s,))[0][0]
        )

    def file_bytes(self) -> int:
        """Return the size of the database file and its log."""
        files = (self._store.path, self._store.path.with_name(f"{self._store.path.name}-wal"))
        return sum(path.stat().st_size for path in files if path.exists())

    def delete_jobs(self, jobs: Sequence[str]) -> None:
        """Delete jobs and their events, except the newest event, after which numbers continue."""
        ids = _list(jobs)
        self._store.delete(
            (f"DELETE FROM event WHERE job {_IN} AND seq < (SELECT max(seq) FROM event)", (ids,)),
            (f"DELETE FROM job WHERE id {_IN}", (ids,)),
        )

    def delete_old(self, before_s: float, meter_before_s: float) -> None:
        """Delete old events of the service, keys, power samples, epochs, and all but the latest readings."""
        self._store.delete(
            (f"DELETE FROM event WHERE {_OLD_EVENTS}", (before_s,)),
            ("DELETE FROM idempotency_key WHERE at_s < ?", (before_s,)),
            ("DELETE FROM power_sample WHERE at_s < ?", (before_s,)),
            (f"DELETE FROM round WHERE epoch IN (SELECT number FROM epoch WHERE {_OLD_EPOCHS})", (before_s,)),
            (f"DELETE FROM epoch WHERE {_OLD_EPOCHS}", (before_s,)),
            (
                "DELETE FROM meter WHERE at_s < ? AND (team, at_s) NOT IN"
                " (SELECT team, max(at_s) FROM meter GROUP BY team)",
                (meter_before_s,),
            ),
        )

    def vacuum(self) -> None:
        """Give free pages of the file back to the disk."""

        def run(connection: sqlite3.Connection) -> None:
            if connection.execute("PRAGMA auto_vacuum").fetchone()[0] == 0:  # a file of an earlier version
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
                connection.execute("VACUUM")
            else:
                connection.execute("PRAGMA incremental_vacuum").fetchall()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

        self._store.run_maintenance(run)


def _list(jobs: Sequence[str]) -> str:
    return json.dumps(list(jobs))
