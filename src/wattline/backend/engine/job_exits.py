"""Handling of attempts that ended: jobs finish, go back to the queue, or are retried after a delay."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.attempt_table import AttemptTable
from wattline.backend.engine.energy_ledger import EnergyLedger
from wattline.backend.engine.exit_policy import (
    decide_exit,
    describe_budget_end,
    find_quick_crash,
    is_retried,
)
from wattline.backend.engine.exit_status import REQUEUE, Exit
from wattline.backend.engine.job_queue import JobQueue
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.progress import ProgressReader
from wattline.backend.engine.protocol import Engine
from wattline.backend.engine.recurring_jobs import RecurringJobs
from wattline.core.events import FAILED, FINISHED, LOST, STOPPED
from wattline.units import pluralize

_RETRY_DELAYS_S = (5.0, 30.0, 120.0, 600.0)  # by number of kills
_LIMIT_DELAYS_S = (30.0, 60.0, 120.0, 300.0, 600.0)  # by number of requests that a limit prevented

OnEvent = Callable[[str, str, dict[str, Any]], None]
"""Called with the kind of an event, a job, and its data, from the thread that runs the loop.

Kinds: started, retuned, notice, stopped, retry, ended; unknown_job: the job to be cancelled is not known
here.
"""


class JobExits:
    """Removes jobs from attempts, and applies the exit policy to them."""

    def __init__(
        self,
        engine: Engine,
        queue: JobQueue,
        attempts: AttemptTable,
        ledger: EnergyLedger,
        recurring: RecurringJobs,
        on_event: OnEvent,
    ) -> None:
        self._engine, self._queue, self._attempts = engine, queue, attempts
        self._ledger, self._recurring, self._on_event = ledger, recurring, on_event
        self._energy_lock = threading.Lock()  # held while the joules of an attempt move to the job's record

    def leave(self, attempt: AttemptRecord, job: str) -> None:
        """Remove a job from an attempt, and add the attempt's time and energy to its record."""
        record, counted_j = self._queue.records[job], self._engine.counted_energy_j(job)
        with self._energy_lock:
            used_j = self._engine.release(attempt, job)
            record.energy_j = None if used_j is None or record.energy_j is None else record.energy_j + used_j
        record.counted_j += counted_j if used_j is None else used_j
        if attempt.started:
            record.service_s += max(self._queue.now_s - attempt.since_s, 0.0)
        self._ledger.add(record.team, counted_j if used_j is None else used_j)
        self._attempts.remove(attempt, job)
        if not attempt.started:
            self._recurring.withdraw(record.spec, attempt)

    def total_energy_j(self, record: JobRecord) -> float | None:
        """Return the joules of a job in all its attempts; None: unknown. Callable from any thread."""
        with self._energy_lock:
            used_j = self._engine.energy_j(record.id)
            return None if used_j is None or record.energy_j is None else record.energy_j + used_j

    def refuse(self, attempt: AttemptRecord) -> None:
        """Handle an attempt that the engine could not start."""
        for job in list(attempt.jobs):
            self.leave(attempt, job)
            message = f"It could not be started: {attempt.message.removesuffix('.')}."
            record = self._queue.records[job]
            if attempt.refusal == "final":
                self.finish(record, "FAILED", message)
            elif attempt.refusal == "limit":
                self._wait_for_limit(record, message)
            elif is_retried(record, "node_fail"):
                self._retry_or_fail(record, "NODE_FAIL", message, None, None)
            else:
                self.finish(record, "NODE_FAIL", message)

    def end(self, attempt: AttemptRecord) -> None:
        """Handle an attempt that ended or vanished."""
        for job in list(attempt.jobs):
            progress = attempt.progress[job]
            progress.read_to_end()
            if attempt.is_array and progress.ended:
                self.end_member(attempt, job)
            else:
                self._end_job(attempt, self._queue.records[job])

    def end_member(self, attempt: AttemptRecord, job: str) -> None:
        """Handle a member that its array's session has ended; the array may go on."""
        record, progress = self._queue.records[job], attempt.progress[job]
        self.leave(attempt, job)
        if attempt.leaving.get(job) == "budget":
            state, message = "FAILED", describe_budget_end(record, self._engine.energy_method)
        elif progress.ended == "cancelled":
            state, message = "CANCELLED", "It was cancelled while its array ran."
        elif progress.ended == "failed":
            state, message = "FAILED", "Its member of the array failed."
        else:
            state, message = "SUCCEEDED", ""
        self.finish(record, state, message, progress=progress)

    def _end_job(self, attempt: AttemptRecord, record: JobRecord) -> None:
        progress, before = attempt.progress[record.id], record.completed_fraction
        record.completed_fraction = max(before, progress.saved)
        self._learn_from_stop(attempt, record)
        holds_lease = self._attempts.current.get(record.id) is attempt
        lasted_s = self._queue.now_s - attempt.since_s
        self.leave(attempt, record.id)
        decision = decide_exit(
            record,
            attempt,
            holds_lease=holds_lease,
            progressed=record.completed_fraction > before,
            lasted_s=lasted_s,
            energy_method=self._engine.energy_method,
        )
        record.crash = find_quick_crash(attempt, progressed=record.completed_fraction > before)
        if attempt.is_array:
            record.fuse = ""  # one failing member must not end the others again
        action, state, message = decision
        if action == "finish":
            self.finish(record, state, message, attempt.exit, progress)
        elif action in ("yield", "requeue"):
            self._on_event("stopped", record.id, self.facts(record, progress, attempt.exit, message))
            self._queue.report(STOPPED if action == "yield" else LOST, record, record.completed_fraction)
        elif action == "retry":
            self._retry(record, message, attempt.exit, progress)
        else:
            self._retry_or_fail(record, state, message, attempt.exit, progress)

    def _learn_from_stop(self, attempt: AttemptRecord, record: JobRecord) -> None:
        """Note whether a stop made the job save, which exit code 75 means."""
        exit = attempt.exit
        was_stopped = exit is not None and (attempt.end_reason == "stop" or exit.end_request == "stop")
        if exit is None or not was_stopped or exit.code == 0:
            return
        record.yields = exit.code == REQUEUE
        record.saves = record.saves or record.yields

    def _retry_or_fail(
        self,
        record: JobRecord,
        state: str,
        message: str,
        exit: Exit | None,
        progress: ProgressReader | None,
    ) -> None:
        """Count a kill, and retry the job unless it has used up its retries."""
        record.kill_count += 1
        if record.kill_count > record.spec.retries:
            message = f"{message} It was tried {pluralize(record.kill_count, 'time')}.".strip()
            self.finish(record, state, message, exit, progress)
        else:
            self._retry(record, message, exit, progress)

    def _wait_for_limit(self, record: JobRecord, message: str) -> None:
        """Take a job out of the queue that a limit keeps from starting; that does not count as a kill."""
        delay_s = _LIMIT_DELAYS_S[min(record.refusals, len(_LIMIT_DELAYS_S) - 1)]
        record.refusals += 1
        self._delay(record, delay_s, message, None, None)

    def _retry(
        self, record: JobRecord, message: str, exit: Exit | None, progress: ProgressReader | None
    ) -> None:
        """Take the job out of the queue for a time that grows with its kills."""
        index = min(max(record.kill_count - 1, 0), len(_RETRY_DELAYS_S) - 1)
        delay_s = record.spec.retry_delay_s
        self._delay(record, _RETRY_DELAYS_S[index] if delay_s is None else delay_s, message, exit, progress)

    def _delay(
        self,
        record: JobRecord,
        delay_s: float,
        message: str,
        exit: Exit | None,
        progress: ProgressReader | None,
    ) -> None:
        record.retry_at_s = self._queue.now_s + delay_s
        data = {
            **self.facts(record, progress, exit, message),
            "kill_count": record.kill_count,
            "retry_at_s": record.retry_at_s,
            "fuse": record.fuse,
        }
        self._on_event("retry", record.id, data)
        self._queue.delay(record)

    def finish(
        self,
        record: JobRecord,
        state: str,
        message: str,
        exit: Exit | None = None,
        progress: ProgressReader | None = None,
    ) -> None:
        """Remove a job for good."""
        for attempt in self._attempts.of_job(record.id):
            if attempt.state == "queued":  # a restart that is not needed any more
                self.leave(attempt, record.id)
        self._on_event("ended", record.id, {"state": state, **self.facts(record, progress, exit, message)})
        succeeded = state == "SUCCEEDED"
        if progress is not None and record.spec.group:
            self._recurring.learn(record.spec, progress, succeeded, state)
        fraction = 1.0 if succeeded else record.completed_fraction
        self._queue.finish(record, FINISHED if succeeded else FAILED, fraction)

    def facts(
        self, record: JobRecord, progress: ProgressReader | None, exit: Exit | None, message: str
    ) -> dict[str, Any]:
        """Return the data of an event about the end of an attempt."""
        facts: dict[str, Any] = {
            "message": message,
            "completed_fraction": record.completed_fraction,
            "service_s": record.service_s,
            "energy_j": record.energy_j,
            "energy_method": self._engine.energy_method,
            "saves": record.saves,
            "startup_s": record.startup_s,
            "restart_s": record.restart_s,
            "crash": record.crash,
            **({} if record.yields is None else {"yields": record.yields}),
        }
        if exit is not None:
            facts |= {"exit_code": exit.code, "signal": exit.signal, "sent_signal": exit.sent_signal}
        if progress is not None:
            facts |= {"metrics": progress.metrics, "batch": progress.batch, "found_cap_w": progress.cap_w}
        return facts
