"""Signals to the batch steps of attempts, sent by Slurm in threads until they are delivered.

The same requests are in a file that the batch step reads: that needs no slurmctld.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Literal

from wattline.backend.engine.slurm.background import CommandThreads
from wattline.backend.engine.slurm.cluster_state import SlurmJob
from wattline.backend.engine.slurm.commands import cancel_jobs, signal_batch_step
from wattline.backend.engine.slurm.tracked_attempt import TrackedAttempt

_KILL_DELAY_S = 15.0  # from a signal to the batch step to the cancellation of the whole job
_RESEND_S = 5.0  # of a signal that could not be delivered

_logger = logging.getLogger(__name__)


class StepSignals:
    """Sends signals, and cancels a whole job that does not end after its grace period."""

    def __init__(self, threads: CommandThreads) -> None:
        self._threads = threads

    def send(self, one: TrackedAttempt, signal: Literal["TERM", "USR1"], job: SlurmJob | None) -> None:
        """Signal the batch step, now and, by `resend`, until it is delivered."""
        if signal == "USR1" or not one.signal:
            if signal != one.signal:
                one.signal_s = one.delivered_s = -1.0
            one.signal = signal
            one.folder.request("stop" if signal == "TERM" else "kill")
            self.resend(one, job)

    def resend(self, one: TrackedAttempt, job: SlurmJob | None) -> None:
        """Send what is due; *job* is the attempt's job in Slurm, None: it has none."""
        if not one.signal or job is None or job.is_over or one.attempt.state != "running":
            return
        now_s = time.monotonic()
        if one.delivered_s < 0:
            if one.signal_s < 0 or now_s - one.signal_s > _RESEND_S:
                self._signal_batch_step(one, job.id, now_s)
            return
        grace_s = one.jobs[0].spec.grace_s if one.jobs and one.signal == "TERM" else 0.0
        if one.jobs and now_s - one.delivered_s > grace_s + _KILL_DELAY_S:
            self.cancel(one, job)

    def cancel(self, one: TrackedAttempt, job: SlurmJob) -> None:
        """Cancel the whole job of an attempt; not more often than every few seconds."""
        now_s = time.monotonic()
        if one.signal_s < 0 or now_s - one.signal_s > _RESEND_S:
            one.signal_s = now_s
            self._threads.run(lambda: cancel_jobs({job.id: job.comment}))

    def _signal_batch_step(self, one: TrackedAttempt, job_id: str, now_s: float) -> None:
        one.signal_s, signal, comment = now_s, one.signal, one.comment

        def on_sent(result: Any) -> None:
            if isinstance(result, Exception):
                _logger.warning("SIG%s did not reach Slurm job %s: %s", signal, job_id, result)
            elif result and one.signal == signal:
                one.delivered_s = time.monotonic()

        self._threads.run(lambda: signal_batch_step(job_id, comment, signal), on_sent)
