"""Map an attempt's exit to finish, requeue or retry."""

from __future__ import annotations

from typing import Literal, NamedTuple

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.job_record import JobRecord

_QUICK_S = 30.0  # a requeue request after less than this, without progress, is delayed
STOPPED_FOR_OTHERS = "It was stopped for others."

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
    job: JobRecord, attempt: AttemptRecord, *, holds_lease: bool, progressed: bool, lasted_s: float
) -> ExitDecision:
    """Decide about a job after its attempt ended or vanished.

    *holds_lease*: the policy had not stopped it. *progressed*: it saved more than it started with.
    """
    exit = attempt.exit
    state = "NODE_FAIL" if exit is None else exit.state
    message = "Its processes vanished." if exit is None else exit.message
    if job.cancelled:
        return ExitDecision("finish", "CANCELLED", "It was cancelled.")
    if attempt.end_reason == "budget":
        return ExitDecision("finish", "FAILED", "It has used all of its own energy budget.")
    if state == "SUCCEEDED":
        return ExitDecision("finish", state, "")
    if attempt.end_reason == "stop" or not holds_lease:
        return ExitDecision("yield", state, STOPPED_FOR_OTHERS)
    if exit is not None and exit.end_request == "stop":  # by an earlier process of the service
        return ExitDecision("requeue", state, STOPPED_FOR_OTHERS)
    if attempt.failure == "node_lost":
        return ExitDecision("requeue", state, "A node that it ran on was lost.")
    if state == "REQUEUE":
        if not progressed and lasted_s < _QUICK_S:
            return ExitDecision("retry", state, "It asked to be started again, and had done nothing.")
        return ExitDecision("requeue", state, "It asked to be started again.")
    if state in ("TIMEOUT", "OUT_OF_MEMORY"):
        return ExitDecision("finish", state, message)
    if attempt.is_array:  # the exit of an array does not tell which member failed: each is tried alone
        return ExitDecision("retry", state, message)
    if exit is None:
        return ExitDecision("retry" if attempt.failure == "reboot" else "retry_or_fail", state, message)
    if exit.signal:
        return ExitDecision("retry_or_fail", state, message)
    return ExitDecision("finish", "FAILED", message)
