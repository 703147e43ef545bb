"""Attempts on Slurm, from the request to their end.

    waiting → asked → queued → claimed → ended or vanished

*asked*: sbatch was called, and its answer is not known. *claimed*: the batch step has written its claim. Only
claims, exit files and comments identify an attempt: slurmctld that was killed forgets jobs, and gives their
ids to others. What Slurm does not know counts only if it was asked after the attempt's last change; while it
does not respond, nothing changes.

    not claimed, unknown to Slurm   declared void and submitted again
    not claimed, ended              refused, with the last line of its log
    claimed, not running in Slurm   vanished when its heartbeat has stopped
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.slurm import batch_step
from wattline.backend.engine.slurm.attempt_folder import AttemptFolder
from wattline.backend.engine.slurm.background import CommandThreads
from wattline.backend.engine.slurm.cluster_state import SlurmJob, SlurmState
from wattline.backend.engine.slurm.commands import cancel_jobs, signal_batch_step, submit_script
from wattline.backend.engine.slurm.heartbeat import MISSED
from wattline.backend.engine.slurm.launcher import create_folders, write_attempt
from wattline.backend.engine.slurm.node_list import NodeList
from wattline.backend.engine.slurm.submission import (
    NodeShare,
    SlurmOptions,
    build_comment,
    build_flags,
    build_script,
    find_shares,
    slurm_time_s,
)
from wattline.errors import Unreachable

_KILL_DELAY_S = 15.0  # from a signal to the batch step to the cancellation of the whole job
_RESEND_S = 5.0  # of a signal that could not be delivered
_ENDED_S = 30.0  # for Slurm to notice the end of a job that has written exit.json
_MAX_SUBMITS = 5  # of one attempt that Slurm forgets again and again

Phase = Literal["waiting", "asked", "queued", "claimed"]

_logger = logging.getLogger(__name__)


@dataclass
class TrackedAttempt:
    """The engine's data about an attempt, kept until it is released. Times are of `time.monotonic`."""

    attempt: AttemptRecord
    jobs: list[JobRecord] = field(default_factory=list)  # to start; empty: it was adopted
    after: list[AttemptRecord] = field(default_factory=list)
    phase: Phase = "waiting"
    comment: str = ""
    job_id: str = ""  # as sbatch or squeue last reported it
    changed_s: float = 0.0  # Slurm's state must be newer than this to count
    submits: int = 0
    reason: str = ""  # why Slurm lets it wait
    signal: Literal["", "TERM", "USR1"] = ""  # to be sent to the batch step
    signal_s: float = -1.0  # when it was last sent; -1: never
    delivered_s: float = -1.0  # since when the batch step has it; -1: it has not

    @property
    def folder(self) -> AttemptFolder:
        """The folder of the attempt."""
        return AttemptFolder(self.attempt.folder)


class Tracker:
    """Submits, observes and ends attempts. All methods are called from one thread."""

    def __init__(
        self, root: Path, service: str, node_list: NodeList, options: SlurmOptions, threads: CommandThreads
    ) -> None:
        self._root, self._service, self._node_list = root, service, node_list
        self._options, self._threads = options, threads
        self._stale_s = MISSED * options.heartbeat_s
        self.tracked: dict[AttemptRecord, TrackedAttempt] = {}
        self._ended_s: dict[str, float] = {}  # by comment: attempts that were released after their end
        self._swept_s = -1.0
        self.share_list = node_list  # with the cores and memory that an attempt without a request gets
        self.shares: dict[str, Sequence[NodeShare]] = {}  # by comment, of attempts that were submitted
        self.on_submit: Callable[[], None] = lambda: None

    @property
    def prefix(self) -> str:
        """The beginning of the comments of all attempts of this service."""
        return f"wl:{self._service}:"

    # -- start

    def add(self, attempt: AttemptRecord, jobs: Sequence[JobRecord], after: Sequence[AttemptRecord]) -> None:
        """Track an attempt that is to be started when all of *after* are released."""
        self.tracked[attempt] = TrackedAttempt(attempt, list(jobs), list(after))

    def adopt(self, attempt: AttemptRecord) -> None:
        """Track an attempt that an earlier process has started."""
        one = TrackedAttempt(attempt, phase="claimed", changed_s=time.monotonic())
        one.comment = self._comment(attempt)
        one.job_id = str((one.folder.claim() or {}).get("job_id", ""))
        self.tracked[attempt] = one
        self.shares[one.comment] = find_shares(self._node_list, attempt)
        attempt.gpus = one.folder.gpus(self._nodes_of(attempt)) or ()

    def submit(self, one: TrackedAttempt, state: SlurmState) -> None:
        """Write the folder of an attempt, and pass it to sbatch in a thread."""
        attempt = one.attempt
        jobs = [job for job in one.jobs if job.id in attempt.jobs]
        lead = jobs[0].spec
        shares = find_shares(self.share_list, attempt, lead.memory_gib)
        attempt.cpus = sum(share.cpus for share in shares)
        try:
            create_folders(self._root, attempt, jobs)
        except OSError as error:
            attempt.state, attempt.message = "refused", str(error)
            return
        one.comment, one.phase, one.submits = self._comment(attempt), "asked", one.submits + 1
        self.shares[one.comment] = shares
        one.changed_s = float("inf")  # until sbatch returns
        flags = build_flags(
            shares,
            self._options,
            name=f"wl-{lead.id}",
            comment=one.comment,
            output=str(attempt.folder / "slurm.log").replace("%", "%%"),
            time_s=slurm_time_s(lead.time_limit_s, lead.grace_s, self._node_list.max_time_s),
            after=self._find_predecessors(attempt, state),
        )
        script = os.path.realpath(batch_step.__file__)
        text = build_script(
            [sys.executable, "-I", "-S", "-X", "utf8", script, os.path.realpath(attempt.folder)]
        )
        comment = one.comment
        written = replace(attempt)  # as it is now, for the thread

        def write_and_submit() -> str:
            write_attempt(self._root, written, jobs, shares, self._options)
            return submit_script(flags, text)

        def on_answer(answer: Any) -> None:
            if one.comment == comment:
                self._on_submitted(one, answer)

        self._threads.run(write_and_submit, on_answer)

    def _on_submitted(self, one: TrackedAttempt, answer: Any) -> None:
        """Note Slurm's id; after a timeout it may be queued or not, which its next state shows."""
        one.changed_s = time.monotonic()
        self.on_submit()
        if isinstance(answer, str):
            one.job_id = answer
            one.phase = "queued" if one.phase == "asked" else one.phase
        elif not isinstance(answer, Unreachable) and one.attempt.state == "queued" and one.folder.void():
            one.attempt.state, one.attempt.message = "refused", str(answer)

    def _find_predecessors(self, attempt: AttemptRecord, state: SlurmState) -> list[str]:
        """Return the ids of earlier attempts at the same jobs that Slurm has not ended yet."""
        names = tuple(f"{self.prefix}{job}:" for job in attempt.jobs)
        own = self._comment(attempt)
        return [
            job.id
            for comment, job in state.jobs.items()
            if comment != own and comment.startswith(names) and not job.is_over
        ]

    def _comment(self, attempt: AttemptRecord) -> str:
        folder = attempt.folder
        return build_comment(self._service, folder.parent.parent.name, int(folder.name))

    def _nodes_of(self, attempt: AttemptRecord) -> list[str]:
        return [self._node_list.names[node] for node, _ in attempt.allocation]

    # -- observation

    def update(self, one: TrackedAttempt, state: SlurmState) -> None:
        """Update the state of an attempt by its folder and Slurm's state."""
        attempt = one.attempt
        if attempt.state == "queued" and one.phase == "waiting":
            if not any(other in self.tracked for other in one.after):
                self.submit(one, state)
        elif attempt.state == "queued":
            self._update_queued(one, state)
        if attempt.state == "running":
            self._update_running(one, state)

    def _update_queued(self, one: TrackedAttempt, state: SlurmState) -> None:
        attempt, folder = one.attempt, one.folder
        claim = folder.claim()
        if claim is not None and not claim.get("void"):
            gpus = folder.gpus(self._nodes_of(attempt))
            if gpus is None and folder.exit() is None and not self._is_gone(one, state):
                return  # the other nodes follow
            one.phase, one.job_id = "claimed", str(claim.get("job_id", one.job_id))
            one.changed_s = time.monotonic()  # an earlier state may show it as pending
            attempt.state, attempt.gpus = "running", gpus or ()
            return
        if state.began_s <= one.changed_s:
            return
        job = state.jobs.get(one.comment)
        if job is not None and not job.is_over:
            one.phase, one.job_id, one.reason = "queued", job.id, job.reason
        elif not folder.void():
            return  # it was claimed just now
        elif job is not None:
            problem = folder.log_tail() or job.reason
            attempt.state = "refused"
            attempt.message = (
                f"Slurm job {job.id} ended as {job.state} before its supervisor started: {problem}"
            )
        elif one.submits >= _MAX_SUBMITS:
            attempt.state = "refused"
            attempt.message = f"Slurm forgot the job {one.submits} times"
        else:
            _logger.warning("Slurm does not know job %s (%s); it is submitted again", one.job_id, one.comment)
            self.submit(one, state)

    def _is_gone(self, one: TrackedAttempt, state: SlurmState) -> bool:
        job = state.jobs.get(one.comment)
        return state.began_s > one.changed_s and (job is None or job.is_over)

    def _update_running(self, one: TrackedAttempt, state: SlurmState) -> None:
        attempt, folder = one.attempt, one.folder
        exit = folder.exit()
        if exit is not None:
            attempt.state, attempt.exit = "ended", exit
            return
        if not attempt.gpus:
            attempt.gpus = folder.gpus(self._nodes_of(attempt)) or ()
        now_s = time.monotonic()
        job = state.jobs.get(one.comment)
        if state.began_s > one.changed_s and (job is None or job.is_over or job.is_pending):
            self._check_heartbeat(one, job)
        elif job is not None:
            one.job_id = job.id
        self._send_signal(one, job, now_s)

    def _check_heartbeat(self, one: TrackedAttempt, job: SlurmJob | None) -> None:
        """End an attempt that Slurm does not run and that shows no sign of life."""
        if one.folder.heartbeat_age_s() > self._stale_s:
            one.attempt.exit = one.folder.exit()
            one.attempt.state = "vanished" if one.attempt.exit is None else "ended"
            if one.attempt.exit is None and job is not None and job.state == "NODE_FAIL":
                one.attempt.failure = "node_lost"

    def is_alive(self, attempt: AttemptRecord, node: int) -> bool:
        """Return whether a started attempt shows signs of life on a node, whatever Slurm takes it for."""
        is_alone = len(attempt.allocation) == 1
        name = "" if is_alone else self._node_list.names[node]
        return AttemptFolder(attempt.folder).heartbeat_age_s(name) <= self._stale_s

    # -- end

    def send(self, attempt: AttemptRecord, signal: Literal["TERM", "USR1"], state: SlurmState) -> None:
        """Signal the batch step, now and until it is delivered."""
        one = self.tracked[attempt]
        if signal == "USR1" or not one.signal:
            if signal != one.signal:
                one.signal_s = one.delivered_s = -1.0
            one.signal = signal
            one.folder.request("stop" if signal == "TERM" else "kill")
            self._send_signal(one, state.jobs.get(one.comment), time.monotonic())

    def _send_signal(self, one: TrackedAttempt, job: SlurmJob | None, now_s: float) -> None:
        if not one.signal or job is None or job.is_over or one.attempt.state != "running":
            return
        if one.delivered_s < 0:
            if one.signal_s < 0 or now_s - one.signal_s > _RESEND_S:
                self._signal_batch_step(one, job.id, now_s)
            return
        grace_s = one.jobs[0].spec.grace_s if one.jobs and one.signal == "TERM" else 0.0
        if (
            one.jobs
            and now_s - one.delivered_s > grace_s + _KILL_DELAY_S
            and now_s - one.signal_s > _RESEND_S
        ):
            one.signal_s = now_s
            self._threads.run(lambda: cancel_jobs([job.id]))

    def _signal_batch_step(self, one: TrackedAttempt, job_id: str, now_s: float) -> None:
        one.signal_s, signal = now_s, one.signal

        def on_sent(result: Any) -> None:
            if isinstance(result, Exception):
                _logger.warning("SIG%s did not reach Slurm job %s: %s", signal, job_id, result)
            elif one.signal == signal:
                one.delivered_s = time.monotonic()

        self._threads.run(lambda: signal_batch_step(job_id, signal), on_sent)

    def remove(self, attempt: AttemptRecord) -> None:
        """Forget an attempt; one that has not ended is ended, and one that has not started never starts."""
        one = self.tracked.pop(attempt)
        self.shares.pop(one.comment, None)
        if attempt.state == "ended":
            self._ended_s[one.comment] = time.monotonic()
        elif one.phase != "waiting":
            one.folder.void()
            if one.job_id and one.comment:
                self._swept_s = -1.0  # look at the state again now

    def sweep(self, state: SlurmState) -> None:
        """Cancel the jobs of this service that Slurm has and that are of no interest any more."""
        if state.began_s <= self._swept_s:
            return
        now_s = self._swept_s = time.monotonic()
        wanted = {one.comment for one in self.tracked.values()}
        self._ended_s = {key: at_s for key, at_s in self._ended_s.items() if now_s - at_s < _ENDED_S}
        stray = [
            job.id
            for comment, job in state.jobs.items()
            if not job.is_over and comment not in wanted and comment not in self._ended_s
        ]
        if stray:
            _logger.info("cancelling Slurm jobs %s, which are not needed any more", ", ".join(stray))
            self._threads.run(lambda: cancel_jobs(stray), _log_error)


def _log_error(result: Any) -> None:
    if isinstance(result, Exception):
        _logger.warning("jobs could not be cancelled, this is tried again: %s", result)
