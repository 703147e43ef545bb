"""Unfinished jobs, their rows in the job table, and the events that the loop has not received yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_table import JobTable
from wattline.core.events import ARRIVED, FAILED, Event, Events, build_events
from wattline.core.nodes import Nodes


class JobQueue:
    """Jobs by id. Those that wait for a retry have no row in *table* until their time has come.

    *now_s* is the last reading of the clock; it never goes back.
    """

    def __init__(self, nodes: Nodes, clock: Callable[[], float]) -> None:
        self.records: dict[str, JobRecord] = {}
        self.table = JobTable(nodes)
        self.events: list[Event] = []
        self._delayed: dict[str, JobRecord] = {}
        self._clock = clock
        self.now_s = clock()

    def read_clock(self) -> float:
        """Update and return *now_s*."""
        self.now_s = max(self.now_s, self._clock())
        return self.now_s

    def add(self, records: Iterable[JobRecord]) -> None:
        """Add jobs, and let those arrive that need not wait for a retry. Known jobs are ignored."""
        now_s = self.read_clock()
        new = [record for record in records if record.id not in self.records]
        for record in new:
            self.records[record.id] = record
            if record.retry_at_s > now_s:
                self._delayed[record.id] = record
        self._enter([record for record in new if record.retry_at_s <= now_s and record.row < 0])

    def add_due(self) -> None:
        """Let the jobs arrive that are due for a retry."""
        self._enter([record for record in self._delayed.values() if record.retry_at_s <= self.now_s])

    def _enter(self, records: list[JobRecord]) -> None:
        self.table.append(records)
        for record in records:
            self._delayed.pop(record.id, None)
            self.events.append(Event(ARRIVED, record.row, self.now_s))

    def move_to_new_rows(self, records: list[JobRecord]) -> None:
        """Give waiting jobs new rows, with their columns as they are now."""
        for record in records:
            self._drop_row(record)
        self._enter(records)

    def delay(self, record: JobRecord) -> None:
        """Take a job out of the queue until its *retry_at_s*."""
        self.report(FAILED, record, record.completed_fraction)
        record.row = -1
        self._delayed[record.id] = record

    def withdraw(self, record: JobRecord) -> None:
        """Remove a waiting job, which may be added again."""
        self._drop_row(record)
        self._forget(record)

    def finish(self, record: JobRecord, verb: int, fraction: float) -> None:
        """Remove a job for good and report its end."""
        self.report(verb, record, fraction)
        record.row = -1
        self._forget(record)

    def _drop_row(self, record: JobRecord) -> None:
        self.report(FAILED, record, 0.0)
        record.row = -1

    def _forget(self, record: JobRecord) -> None:
        self.records.pop(record.id, None)
        self._delayed.pop(record.id, None)

    def report(self, verb: int, record: JobRecord, fraction: float) -> None:
        """Append the event of a lease's end, with *fraction* of the job complete."""
        if record.row >= 0:
            steps = self.table.steps(record, fraction)
            self.events.append(Event(verb, record.row, self.now_s, steps, 0.0, record.energy_j or 0.0))

    def take_events(self) -> Events:
        """Remove and return the events."""
        events = build_events(*self.events)
        self.events.clear()
        return events

    def rebuild(self) -> list[JobRecord]:
        """Start a new table with the jobs that are due, and return them in its order; drop all events."""
        now_s = self.read_clock()
        records = self.records.values()
        queued = sorted((one for one in records if one.retry_at_s <= now_s), key=lambda one: one.submit_s)
        self.table.clear()
        for record in records:
            record.row = -1
        self._delayed = {one.id: one for one in records if one.retry_at_s > now_s}
        self.table.append(queued)
        self.events.clear()
        return queued

    @property
    def next_retry_s(self) -> float:
        """Time of the next retry; inf: there is none."""
        return min((record.retry_at_s for record in self._delayed.values()), default=math.inf)
