"""Attempts on Slurm, from the request to their end.

    waiting → asked → queued → claimed → ended or vanished

*asked*: sbatch was called, and its answer is not known. *claimed*: the batch step has written its claim. Only
claims, exit files and comments identify an attempt: slurmctld that was killed forgets jobs, and gives their
ids to others. What Slurm does not know counts only if it was asked after the attempt's last change; while it
does not respond, nothing changes.

    not claimed, unknown to Slurm   declared void and submitted again
    not claimed, ended              refused, with the last line of its log
    waits for a limit               refused, so that others get its GPUs, and tried again later
    claimed, not running in Slurm   vanished when its heartbeat has stopped
    claimed, running, silent        cancelled when its heartbeat has stopped for long
    claimed, alive, unknown         stopped if it has a session, see `orphans`

An id is used only after a check that it still has the attempt's comment.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.folder_layout import job_folder
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.local.user_lookup import look_up_user, own_user
from wattline.backend.engine.slurm import batch_step
from wattline.backend.engine.slurm.attempt_folder import AttemptFolder
from wattline.backend.engine.slurm.background import CommandThreads
from wattline.backend.engine.slurm.cluster_state import SlurmJob, SlurmState
from wattline.backend.engine.slurm.commands import cancel_jobs, find_own_jobs, submit_script
from wattline.backend.engine.slurm.heartbeat import MISSED
from wattline.backend.engine.slurm.launcher import create_folders, user_variables, write_attempt
from wattline.backend.engine.slurm.node_list import NodeList
from wattline.backend.engine.slurm.orphans import find_failure, report_missing_claim, stop_orphan
from wattline.backend.engine.slurm.refusals import classify_refusal, describe_wait, find_limit
from wattline.backend.engine.slurm.step_signals import StepSignals
from wattline.backend.engine.slurm.submission import (
    NodeShare,
    SlurmOptions,
    build_comment,
    build_flags,
    build_script,
    find_shares,
    slurm_time_s,
)
from wattline.backend.engine.slurm.tracked_attempt import TrackedAttempt
from wattline.errors import BackendError, ConfigError, Unreachable

_ENDED_S = 30.0  # for Slurm to notice the end of a job that has written exit.json
SILENT = 15
"""A job that Slurm runs is cancelled after this multiple of the time after which its heartbeat is missed."""
_MAX_SUBMITS = 5  # of one attempt that Slurm forgets again and again
_WRITE_AGAIN_S = 2.0  # after the files of an attempt could not be written: the disk is full
_FULL = (errno.ENOSPC, errno.EDQUOT)

_logger = logging.getLogger(__name__)


class NotWritten(BackendError):
    """The files of an attempt could not be written, so that it was not submitted."""

    code = "not_written"


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
        self._spared: set[str] = set()  # comments of those that had ended before this process
        self._not_void: list[AttemptFolder] = []  # of attempts that were removed while the disk was full
        self._swept_s = -1.0
        self._signals = StepSignals(threads)
        self.problem = ""  # why attempts cannot be written; empty: they can
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
        options = self._options.for_job(lead.user, jobs[0].team)
        try:
            user = look_up_user(lead.user)
            if not one.is_folder_unused or set(attempt.event_files) != {job.id for job in jobs}:
                create_folders(self._root, attempt, jobs)
        except ConfigError as error:
            attempt.state, attempt.message = "refused", str(error)
            return
        except OSError as error:
            self._on_not_written(one, error)
            return
        one.is_folder_unused = False
        one.comment, one.phase, one.submits = self._comment(attempt), "asked", one.submits + 1
        self.shares[one.comment] = shares
        one.changed_s = float("inf")  # until sbatch returns
        comment, before = one.comment, self._find_predecessors(attempt, state)
        variables = {} if user is None else user_variables(user)
        written = replace(attempt)  # as it is now, for the thread

        def write_and_submit() -> str:
            try:
                write_attempt(self._root, written, jobs, shares, options)
            except OSError as error:
                raise NotWritten(f"{written.folder}: {error.strerror or error}") from error
            flags = build_flags(
                shares,
                options,
                name=f"wl-{lead.id}",
                comment=comment,
                output=str(written.folder / "slurm.log").replace("%", "%%"),
                time_s=slurm_time_s(lead.time_limit_s, lead.grace_s, self._node_list.max_time_s),
                after=find_own_jobs(before),
                user=user,
            )
            return submit_script(flags, _build_batch_script(options.node_python, written.folder), variables)

        def on_answer(answer: Any) -> None:
            if one.comment == comment:
                self._on_submitted(one, answer)

        self._threads.run(write_and_submit, on_answer)

    def _on_submitted(self, one: TrackedAttempt, answer: Any) -> None:
        """Note Slurm's id; after a timeout it may be queued or not, which its next state shows."""
        one.changed_s = time.monotonic()
        self.on_submit()
        if isinstance(answer, str):
            one.retry_s = 0.0
            one.job_id = answer
            one.phase = "queued" if one.phase == "asked" else one.phase
        elif isinstance(answer, NotWritten) and isinstance(answer.__cause__, OSError):
            one.submits, one.is_folder_unused = one.submits - 1, True
            self._on_not_written(one, answer.__cause__)
        elif not isinstance(answer, Unreachable) and one.attempt.state == "queued" and one.folder.void():
            self._refuse(one, str(answer))

    def _refuse(self, one: TrackedAttempt, message: str) -> None:
        """End an attempt that sbatch has refused; the account is named where it may be the cause."""
        attempt = one.attempt
        attempt.state, attempt.refusal = "refused", classify_refusal(message)
        if attempt.refusal:
            options = self._options.for_job(one.jobs[0].spec.user, one.jobs[0].team)
            account = f"account {options.account}" if options.account else "its default account"
            message = f"{message} (user {attempt.user or own_user()}, {account})"
        attempt.message = message

    def _on_not_written(self, one: TrackedAttempt, error: OSError) -> None:
        """Let an attempt wait until there is space; after another error it is refused.

        Without all its files it cannot be submitted, and no batch step could run it.
        """
        if error.errno not in _FULL:
            one.attempt.state, one.attempt.message = "refused", str(error)
            return
        one.phase, one.retry_s = "waiting", time.monotonic() + _WRITE_AGAIN_S
        problem = f"no job starts until files can be written: {one.attempt.folder}: {error.strerror}"
        if not self.problem:
            _logger.error("%s", problem)
        self.problem = problem

    def _find_predecessors(self, attempt: AttemptRecord, state: SlurmState) -> dict[str, str]:
        """Return the ids and comments of earlier attempts at the same jobs that Slurm has not ended yet."""
        names = tuple(f"{self.prefix}{job}:" for job in attempt.jobs)
        own = self._comment(attempt)
        return {
            job.id: comment
            for comment, job in state.jobs.items()
            if comment != own and comment.startswith(names) and not job.is_over
        }

    def _comment(self, attempt: AttemptRecord) -> str:
        folder = attempt.folder
        return build_comment(self._service, folder.parent.parent.name, int(folder.name), attempt.user)

    def _nodes_of(self, attempt: AttemptRecord) -> list[str]:
        return [self._node_list.names[node] for node, _ in attempt.allocation]

    # -- observation

    def update(self, one: TrackedAttempt, state: SlurmState) -> None:
        """Update the state of an attempt by its folder and Slurm's state."""
        attempt = one.attempt
        if attempt.state == "queued" and one.phase == "waiting":
            is_due = time.monotonic() >= one.retry_s
            if is_due and not any(other in self.tracked for other in one.after):
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
            attempt.state, attempt.gpus, attempt.message = "running", gpus or (), ""
            return
        if state.began_s <= one.changed_s:
            return
        job = state.jobs.get(one.comment)
        if job is not None and not job.is_over:
            one.phase, one.job_id = "queued", job.id
            report_missing_claim(one, job)
            self._update_wait(one, job.reason)
        elif not folder.void():
            return  # it was claimed just now, or the disk is full
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

    def _update_wait(self, one: TrackedAttempt, reason: str) -> None:
        """Note why Slurm lets an attempt wait; one that waits for a limit gives its GPUs back after a time.

        Else it would hold GPUs that Slurm does not give to it, and that other jobs could use.
        """
        attempt, now_s = one.attempt, time.monotonic()
        attempt.message, limit = describe_wait(reason), find_limit(reason)
        if not limit:
            one.limited_s = -1.0
        elif one.limited_s < 0:
            one.limited_s = now_s
        elif now_s - one.limited_s > self._options.limit_wait_s and one.folder.void():
            attempt.state, attempt.refusal = "refused", "limit"
            attempt.message = f"Slurm let it wait for {limit} ({reason}), so its GPUs were given back"

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
        job = state.jobs.get(one.comment)
        if state.began_s > one.changed_s and (job is None or job.is_over or job.is_pending):
            self._check_heartbeat(one, job)
            stop_orphan(one, job, self._stale_s)
        elif job is not None:
            one.job_id, one.unknown_s = job.id, math.inf
            self._check_silence(one, job)
        self._signals.resend(one, job)

    def _check_heartbeat(self, one: TrackedAttempt, job: SlurmJob | None) -> None:
        """End an attempt that Slurm does not run and that shows no sign of life."""
        attempt = one.attempt
        if self._silence_s(one) > self._stale_s:
            attempt.exit = one.folder.exit()
            attempt.state = "vanished" if attempt.exit is None else "ended"
            if attempt.exit is None:
                attempt.failure = find_failure(job)

    def _check_silence(self, one: TrackedAttempt, job: SlurmJob) -> None:
        """Cancel a job that Slurm takes for running although its processes are gone for long.

        slurmctld that was killed may have started the job anew, with a batch step that could not start.
        """
        now_s = time.monotonic()
        if now_s - one.listened_s > self._stale_s:
            one.listened_s = now_s
            silent_s = self._silence_s(one)
            if silent_s > SILENT * self._stale_s:
                _logger.warning(
                    "Slurm job %s (%s) has shown no sign of life for %.0f s; it is cancelled",
                    job.id,
                    one.comment,
                    silent_s,
                )
                self._signals.cancel(one, job)

    def _silence_s(self, one: TrackedAttempt) -> float:
        """Return the seconds since the last heartbeat of an attempt on any of its nodes."""
        nodes = self._nodes_of(one.attempt)
        names = ["", *nodes] if len(nodes) > 1 else [""]
        return min(one.folder.heartbeat_age_s(name) for name in names)

    def is_alive(self, attempt: AttemptRecord, node: int) -> bool:
        """Return whether a started attempt shows signs of life on a node, whatever Slurm takes it for."""
        is_alone = len(attempt.allocation) == 1
        name = "" if is_alone else self._node_list.names[node]
        return AttemptFolder(attempt.folder).heartbeat_age_s(name) <= self._stale_s

    # -- end

    def send(self, attempt: AttemptRecord, signal: Literal["TERM", "USR1"], state: SlurmState) -> None:
        """Signal the batch step, now and until it is delivered."""
        one = self.tracked[attempt]
        self._signals.send(one, signal, state.jobs.get(one.comment))

    def remove(self, attempt: AttemptRecord) -> None:
        """Forget an attempt; one that has not ended is ended, and one that has not started never starts."""
        one = self.tracked.pop(attempt)
        self.shares.pop(one.comment, None)
        if attempt.state == "ended":
            self._ended_s[one.comment] = time.monotonic()
        elif one.phase != "waiting":
            if not one.folder.void() and one.folder.claim() is None:
                self._not_void.append(one.folder)
            if one.job_id and one.comment:
                self._swept_s = -1.0  # look at the state again now

    def sweep(self, state: SlurmState) -> None:
        """Cancel the jobs of this service that Slurm has and that are of no interest any more."""
        if state.began_s <= self._swept_s:
            return
        if self.problem and not any(one.retry_s for one in self.tracked.values()):
            _logger.warning("files can be written again")
            self.problem = ""
        self._not_void = [one for one in self._not_void if not one.void() and one.claim() is None]
        now_s = self._swept_s = time.monotonic()
        wanted = {one.comment for one in self.tracked.values()}
        self._ended_s = {key: at_s for key, at_s in self._ended_s.items() if now_s - at_s < _ENDED_S}
        stray = {
            job.id: comment
            for comment, job in state.jobs.items()
            if not (job.is_over or comment in wanted or comment in self._ended_s or self._is_ending(comment))
        }
        if stray:
            _logger.info("cancelling Slurm jobs %s, which are not needed any more", ", ".join(stray))
            self._threads.run(lambda: cancel_jobs(stray), _log_error)

    def _is_ending(self, comment: str) -> bool:
        """Return whether an attempt of before this process has written its end; Slurm notices it soon."""
        job, number = comment.removeprefix(self.prefix).split(":")[:2]
        folder = AttemptFolder(job_folder(self._root, job) / "attempts" / number)
        if comment in self._spared or folder.exit() is None:
            return False
        self._spared.add(comment)
        self._ended_s[comment] = time.monotonic()
        return True


def _build_batch_script(python: str, folder: Path) -> str:
    script = os.path.realpath(batch_step.__file__)
    return build_script([python, "-I", "-S", "-X", "utf8", script, os.path.realpath(folder)])


def _log_error(result: Any) -> None:
    if isinstance(result, Exception):
        _logger.warning("jobs could not be cancelled, this is tried again: %s", result)
