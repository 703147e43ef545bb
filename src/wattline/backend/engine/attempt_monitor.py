"""Attempts under way: their starts, progress and ends, and the nodes that they run on."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.attempt_table import AttemptTable
from wattline.backend.engine.folder_layout import checkpoint_folder
from wattline.backend.engine.job_exits import JobExits, OnEvent
from wattline.backend.engine.job_queue import JobQueue
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.preemption import CheckpointWatch
from wattline.backend.engine.progress import ProgressReader
from wattline.backend.engine.protocol import Engine
from wattline.backend.engine.user_files import create_file
from wattline.core.events import LOST, NODE_BACK, NODE_LOST, PROTECTED, RAN, READY, Event

CHECK_INTERVAL_S = 1.0
"""Time between two reads of a job's progress."""
_REPORT_INTERVAL_S = 10.0  # between two RAN events of one attempt, unless its rate changes
_UNMETERED_BUDGET = "Its energy budget cannot be enforced: the energy of its GPUs cannot be read."
_RATE_CHANGE = 0.1  # relative change of a rate that is reported at once


class AttemptMonitor:
    """Polls the engine, and turns the changes that it finds into events of jobs and nodes."""

    def __init__(
        self,
        root: Path,
        engine: Engine,
        queue: JobQueue,
        attempts: AttemptTable,
        exits: JobExits,
        on_event: OnEvent,
    ) -> None:
        self._root, self._engine, self._queue, self._attempts = root, engine, queue, attempts
        self._exits, self._on_event = exits, on_event
        self.nodes_down: set[int] = set()
        self._unmetered: set[str] = set()  # jobs with an energy budget that cannot be enforced

    def poll(self) -> None:
        """Poll the engine, handle all changes, and let jobs arrive that are due for a retry."""
        self._queue.read_clock()
        while True:
            queued = [attempt for attempt in self._attempts.attempts if attempt.state == "queued"]
            for attempt in queued:
                attempt.since_s = self._queue.now_s  # it has used no time yet
            self._handle_node_changes()
            self._engine.poll(self._attempts.attempts)
            ended = [attempt for attempt in list(self._attempts.attempts) if self.update(attempt)]
            if not ended or not queued:
                break  # else the GPUs of attempts that ended may let queued ones start
        self._queue.add_due()

    def update(self, attempt: AttemptRecord) -> bool:
        """Handle the state of an attempt; return whether it is over."""
        if attempt.state == "refused":
            self._exits.refuse(attempt)
            return True
        if attempt.started and not attempt.progress:
            self._on_start(attempt)
            if attempt.state == "running":
                return False
        if attempt.state in ("ended", "vanished"):
            self._exits.end(attempt)
            return True
        if attempt.state == "running" and self._queue.now_s - attempt.checked_s >= CHECK_INTERVAL_S:
            self._check_progress(attempt)
        return False

    def _handle_node_changes(self) -> None:
        for node, is_up in self._engine.node_changes():
            if is_up:
                self.nodes_down.discard(node)
            else:
                self.nodes_down.add(node)
                self._lose_node(node)
            verb = NODE_BACK if is_up else NODE_LOST
            self._queue.events.append(Event(verb, node, self._queue.now_s))

    def _lose_node(self, node: int) -> None:
        """End the attempts on a node that went down; their jobs are back in the queue."""
        lost = [one for one in self._attempts.attempts if any(node == where for where, _ in one.allocation)]
        for attempt in lost:
            if attempt.started:
                self._engine.kill(attempt)  # on its other nodes
                attempt.state, attempt.exit, attempt.failure = "vanished", None, "node_lost"
                self.update(attempt)
                continue
            for job in list(attempt.jobs):
                record = self._queue.records[job]
                self._exits.leave(attempt, job)
                self._queue.report(LOST, record, record.completed_fraction)

    def _on_start(self, attempt: AttemptRecord) -> None:
        attempt.since_s = self._queue.now_s
        attempt.is_array = len(attempt.jobs) > 1
        self.watch(attempt, adopted=False)
        for job in attempt.jobs:
            record = self._queue.records[job]
            self.record_start(attempt, record, attempt.since_s)
            if self._attempts.holds_lease(attempt, job, self._queue.records):
                self._queue.events.append(self.ran_event(attempt, record))
                self._report_protection(attempt, record)

    def watch(self, attempt: AttemptRecord, *, adopted: bool) -> None:
        """Begin to read the progress and to notice the checkpoints of an attempt that runs."""
        attempt.progress = {job: ProgressReader(attempt.event_files[job]) for job in attempt.jobs}
        for job in attempt.jobs:
            folder = checkpoint_folder(self._root, self._queue.records[job].spec)
            attempt.checkpoints[job] = CheckpointWatch(folder, attempt.since_s, adopted=adopted)
            if adopted:
                attempt.progress[job].read()

    def record_start(self, attempt: AttemptRecord, record: JobRecord, at_s: float) -> None:
        """Update a job that was started, and pass that on as an event."""
        record.starts, record.refusals = attempt.number(record.id), 0
        record.first_start_s = at_s if math.isnan(record.first_start_s) else record.first_start_s
        data = {
            "attempt": record.starts,
            "gpus": list(attempt.gpus),
            "kind": self._engine.nodes.kind.word(attempt.node),
            "cap_w": attempt.effective_cap_w,
            "batch": attempt.settings.batch,
            "cpus": attempt.cpus,
            "fused_with": [job for job in attempt.jobs if job != record.id],
        }
        self._on_event("started", record.id, data)

    def _check_progress(self, attempt: AttemptRecord) -> None:
        """Read the progress of all jobs of an attempt."""
        now_s = self._queue.now_s
        attempt.checked_s = now_s
        self._engine.sample_energy()
        attempt.power_w = self._engine.power_w(attempt)
        for job in list(attempt.jobs):
            progress, record = attempt.progress[job], self._queue.records[job]
            self._enforce_budget(attempt, record)
            has_news = progress.read()
            if attempt.is_array and progress.ended:
                self._exits.end_member(attempt, job)
                continue
            if not self._attempts.holds_lease(attempt, job, self._queue.records):
                continue
            was_ready = progress.first_counted
            self._report_protection(attempt, record)
            if progress.first_counted and not was_ready:
                self._queue.events.append(Event(READY, record.row, now_s, rate=record.startup_s))
            if not has_news:
                continue
            self._report_rate(attempt, record, progress.rate or 0.0)

    def _enforce_budget(self, attempt: AttemptRecord, record: JobRecord) -> None:
        """End a job that has used its own energy budget, by the counters of its GPUs."""
        budget_j, job = record.spec.max_joules, record.id
        if budget_j is None or attempt.end_reason in ("budget", "cancel") or job in attempt.leaving:
            return
        if self._engine.energy_j(job) is None and job not in self._unmetered:
            self._unmetered.add(job)
            self._on_event("notice", job, {"message": _UNMETERED_BUDGET})
        if record.counted_j + self._engine.counted_energy_j(job) > budget_j:
            self.end_job(attempt, job, "budget")

    def _report_rate(self, attempt: AttemptRecord, record: JobRecord, rate: float) -> None:
        now_s = self._queue.now_s
        elapsed_s = now_s - attempt.reported_s
        changed = abs(rate - attempt.reported_rate) > _RATE_CHANGE * max(attempt.reported_rate, 1e-12)
        if rate > 0 and elapsed_s >= (CHECK_INTERVAL_S if changed else _REPORT_INTERVAL_S):
            attempt.reported_s, attempt.reported_rate = now_s, rate
            self._queue.events.append(self.ran_event(attempt, record))

    def _report_protection(self, attempt: AttemptRecord, record: JobRecord) -> None:
        """Report a job's checkpoint and protection if they have changed, a new checkpoint not too often."""
        watch, now_s = attempt.checkpoints[record.id], self._queue.now_s
        before = watch.reported
        event = self.protected_event(attempt, record)
        is_due = now_s - watch.reported_s >= _REPORT_INTERVAL_S
        if before is None or before.until_s != event.rate or (is_due and before != watch.reported):
            watch.reported_s = now_s
            self._queue.events.append(event)
        else:
            watch.reported = before

    def protected_event(self, attempt: AttemptRecord, record: JobRecord) -> Event:
        """Return the `PROTECTED` event of a job now."""
        watch, now_s = attempt.checkpoints[record.id], self._queue.now_s
        watch.reported = found = watch.check(record, attempt.progress[record.id], now_s)
        steps = self._queue.table.steps(record, found.fraction)
        return Event(PROTECTED, record.row, now_s, steps, found.until_s, found.saved_s)

    def ran_event(self, attempt: AttemptRecord, record: JobRecord) -> Event:
        """Return the `RAN` event of a job now: its steps, rate and power draw."""
        progress, table = attempt.progress.get(record.id), self._queue.table
        fraction = None if progress is None else progress.fraction
        steps = table.steps(record, record.completed_fraction if fraction is None else fraction)
        steps_per_s = table.steps_per_s(record, None if progress is None else progress.rate)
        power_w = (self._engine.power_w(attempt) or 0.0) / max(self._attempts.sharing(attempt), 1)
        # Without reports it is assumed to run at the assumed speed since its start.
        at_s = self._queue.now_s if fraction is not None else min(attempt.since_s, self._queue.now_s)
        return Event(RAN, record.row, at_s, steps, steps_per_s, power_w)

    def end_job(self, attempt: AttemptRecord, job: str, reason: Literal["cancel", "budget"]) -> None:
        """Ask a running job to end; an array goes on without it."""
        if len(attempt.jobs) == 1:
            attempt.end_reason = reason
            self._engine.stop(attempt)
        else:
            attempt.leaving[job] = reason
            with suppress(OSError):  # the array's session looks for this file
                os.close(create_file(attempt.progress[job].path.parent / "cancel"))
