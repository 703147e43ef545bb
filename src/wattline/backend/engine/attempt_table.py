"""Attempts that were requested or run, and the one that each job is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.job_record import JobRecord
from wattline.core.leases import LEASE_ROWS, Leases


class AttemptTable:
    """Attempts in the order of their requests.

    A preempted job leaves *current* at once, and stays in the attempt until its processes have ended; it may
    be in a new one meanwhile.
    """

    def __init__(self) -> None:
        self.attempts: list[AttemptRecord] = []
        self.current: dict[str, AttemptRecord] = {}  # by job: the attempt with its lease

    def add(self, attempt: AttemptRecord) -> None:
        """Add an attempt, which becomes the current one of its jobs."""
        self.attempts.append(attempt)
        for job in attempt.jobs:
            self.current[job] = attempt

    def remove(self, attempt: AttemptRecord, job: str) -> None:
        """Remove a job from an attempt, and the attempt with its last job."""
        attempt.jobs.remove(job)
        if self.current.get(job) is attempt:
            del self.current[job]
        if not attempt.jobs:
            self.attempts.remove(attempt)

    def preempt(self, job: str) -> bool:
        """Take the lease from a job; return whether no job of its attempt has one any more."""
        attempt = self.current.pop(job)
        attempt.preempted = not any(self.current.get(other) is attempt for other in attempt.jobs)
        return attempt.preempted

    def of_job(self, job: str) -> list[AttemptRecord]:
        """Return all attempts that a job is in, the oldest first."""
        return [attempt for attempt in self.attempts if job in attempt.jobs]

    def find_started(self, job: str) -> AttemptRecord | None:
        """Return the latest attempt of a job with processes, or None. Callable from any thread."""
        return next((one for one in reversed(self.attempts[:]) if one.started and job in one.jobs), None)

    def find_queued(self, job: str) -> AttemptRecord | None:
        """Return the attempt of a job that is not started yet, or None. Callable from any thread."""
        return next((one for one in self.attempts[:] if one.state == "queued" and job in one.jobs), None)

    def of_any(self, jobs: Sequence[str]) -> list[AttemptRecord]:
        """Return all attempts that at least one of *jobs* is in, the oldest first."""
        return [attempt for attempt in self.attempts if not set(jobs).isdisjoint(attempt.jobs)]

    def sharing(self, attempt: AttemptRecord) -> int:
        """Return the number of jobs on the GPUs of an attempt, its own included."""
        place = attempt.allocation, attempt.gpus
        return sum(len(other.jobs) for other in self.attempts if (other.allocation, other.gpus) == place)

    def lease_holders(self, records: Mapping[str, JobRecord]) -> list[tuple[AttemptRecord, JobRecord]]:
        """Return the jobs with a row and a lease, and their attempts."""
        pairs = [(attempt, job) for attempt in self.attempts for job in attempt.jobs]
        return [(attempt, records[job]) for attempt, job in pairs if self.holds_lease(attempt, job, records)]

    def holds_lease(self, attempt: AttemptRecord, job: str, records: Mapping[str, JobRecord]) -> bool:
        """Return whether a job has a row, and a lease in this attempt."""
        return self.current.get(job) is attempt and job in records and records[job].row >= 0

    def build_leases(self, records: Mapping[str, JobRecord]) -> Leases:
        """Return the leases that jobs hold in their current attempts."""
        columns: list[tuple[int, ...]] = []
        leaders: dict[tuple[object, ...], int] = {}  # jobs that are packed on the same GPUs are one group
        holders = self.lease_holders(records)
        for attempt, record in holders:
            place = (attempt.allocation, attempt.gpus) if attempt.gpus else (id(attempt),)
            leaders[place] = min(leaders.get(place, record.row), record.row)
        for attempt, record in holders:
            place = (attempt.allocation, attempt.gpus) if attempt.gpus else (id(attempt),)
            s = attempt.settings
            settings = (s.cap_w, s.batch, s.mcpus, s.mem_mib, 0)
            columns += [(record.row, leaders[place], *one, *settings) for one in attempt.allocation]
        block = np.array(sorted(columns), dtype=np.int64).reshape(-1, LEASE_ROWS).T
        return Leases(np.ascontiguousarray(block))
