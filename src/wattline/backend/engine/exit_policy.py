"""Map an attempt's exit to finish, requeue or retry."""

from __future__ import annotations

from signal import Signals
from typing import Literal, NamedTuple

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.exit_status import Exit
from wattline.backend.engine.job_record import JobRecord
from wattline.units import format_seconds

_QUICK_S = 30.0  # a requeue request or a crash after less than this, without progress, is not usual
STOPPED_FOR_OTHERS = "It was stopped for others."

Cause = Literal["crash", "killed", "node_fail", "error", "out_of_memory", "timeout"]
"""Why an attempt ended that did not succeed. *crash*: a signal that means an error of the program. *killed*:
another signal. *node_fail*: its processes vanished, or could not be started. *error*: an exit code."""

CRASH_SIGNALS = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS", "SIGTRAP")
RETRIED_CAUSES: tuple[Cause, ...] = ("crash", "killed", "node_fail")
"""Causes after which a job is retried unless its job file names others."""

Action = Literal["finish", "yield", "requeue", "retry", "retry_or_fail"]
"""*finish*: the job leaves for good. *yield*: it gave its GPUs back as requested. *requeue*: it lost its GPUs
and is back in the queue. *retry*: it is queued again after a delay. *retry_or_fail*: the same, and it counts
against the job's retries."""


class ExitDecision(NamedTuple):
    """The action after an attempt's exit, the job's state if it is final, and a sentence for the user."""

    action: Action
    state: str
    message: str


def decide_exit(
    job: JobRecord,
    attempt: AttemptRecord,
    *,
    holds_lease: bool,
    progressed: bool,
    lasted_s: float,
    energy_method: str = "",
) -> ExitDecision:
    """Decide about a job after its attempt ended or vanished.

    *holds_lease*: the policy had not stopped it. *progressed*: it saved more than it started with.
    """
    exit = attempt.exit
    state = "NODE_FAIL" if exit is None else exit.state
    message = "Its processes vanished." if exit is None else describe_exit(exit)
    if job.cancelled:
        return ExitDecision("finish", "CANCELLED", "It was cancelled.")
    if attempt.end_reason == "budget":
        return ExitDecision("finish", "FAILED", describe_budget_end(job, energy_method))
    if state == "SUCCEEDED":
        return ExitDecision("finish", state, "")
    if job.is_over_budget:  # it must not start again
        return ExitDecision("finish", "FAILED", describe_budget_end(job, energy_method))
    if attempt.end_reason == "stop" or not holds_lease:
        return ExitDecision("yield", state, describe_stop(attempt, saved=state == "REQUEUE"))
    if attempt.failure == "forgotten" and (exit is None or exit.end_request == "stop"):
        return ExitDecision("requeue", state, "Slurm had forgotten it.")
    if exit is not None and exit.end_request == "stop":  # by an earlier process of the service
        return ExitDecision("requeue", state, STOPPED_FOR_OTHERS)
    if attempt.failure == "node_lost":
        return ExitDecision("requeue", state, "A node that it ran on was lost.")
    if state == "REQUEUE":
        if not progressed and lasted_s < _QUICK_S:
            return ExitDecision("retry", state, "It asked to be started again, and had done nothing.")
        return ExitDecision("requeue", state, "It asked to be started again.")
    cause = find_cause(exit)
    if cause in ("timeout", "out_of_memory"):
        return ExitDecision("retry_or_fail" if is_retried(job, cause) else "finish", state, message)
    if attempt.is_array:  # the exit of an array does not tell which member failed: each is tried alone
        return ExitDecision("retry", state, message)
    if attempt.failure == "reboot":
        return ExitDecision("retry", state, message)
    if not is_retried(job, cause):
        return ExitDecision("finish", state, message)
    crash = find_quick_crash(attempt, progressed=progressed)
    if crash and crash == job.crash and job.spec.retry_on is None:
        message = f"{message} So was the attempt before: that is an error of the program."
        return ExitDecision("finish", state, message)
    return ExitDecision("retry_or_fail", state, message)


def describe_stop(attempt: AttemptRecord, *, saved: bool) -> str:
    """Return why the policy stopped an attempt, and what it lost unless it has *saved* at the stop."""
    why = "It was stopped to hold the energy budget." if attempt.for_budget else STOPPED_FOR_OTHERS
    if saved or attempt.unsaved_s < 0.1:
        return why
    return (
        f"{why.removesuffix('.')}; it had not saved the last {format_seconds(round(attempt.unsaved_s, 1))}."
    )


def is_retried(job: JobRecord, cause: Cause) -> bool:
    """Return whether a job is retried after this cause, as long as it has retries left."""
    return cause in (RETRIED_CAUSES if job.spec.retry_on is None else job.spec.retry_on)


def find_cause(exit: Exit | None) -> Cause:
    """Return why an attempt ended that did not succeed; None: without an exit status."""
    if exit is None:
        return "node_fail"
    if exit.state == "TIMEOUT":
        return "timeout"
    if exit.state == "OUT_OF_MEMORY":
        return "out_of_memory"
    if exit.signal:
        return "crash" if exit.signal in CRASH_SIGNALS else "killed"
    return "error"


def find_quick_crash(attempt: AttemptRecord, *, progressed: bool) -> str:
    """Return the signal of a program error that ended an attempt soon after its start; empty: none did."""
    exit = attempt.exit
    if exit is None or progressed or find_cause(exit) != "crash" or exit.seconds >= _QUICK_S:
        return ""
    return exit.signal or ""


def describe_exit(exit: Exit) -> str:
    """Return how an attempt ended, in one sentence; empty if its exit code says all."""
    if exit.signal and exit.end_request is None and not exit.oom:
        after = format_seconds(round(exit.seconds, 1))
        because = f": {exit.message}" if exit.message else ""
        return f"It was killed by {exit.signal} {after} after its start{because}."
    if not exit.message and exit.code - 128 in (4, 6, 7, 8, 9, 11):
        name = Signals(exit.code - 128).name
        return f"Its exit code was {exit.code}: a shell that it ran says so that {name} killed a command."
    return exit.message


def describe_budget_end(job: JobRecord, method: str) -> str:
    """Return why a job was ended that has used its own energy budget."""
    allowed_j = job.spec.max_joules or 0.0
    used = f"{job.counted_j:.4g} J ({method})"
    return f"It was ended by its energy budget: used {used}, allowed {allowed_j:.4g} J."
