from __future__ import annotations

from typing import Any

import pytest

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.exit_policy import decide_exit, describe_exit, describe_stop
from wattline.backend.engine.exit_status import Exit
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import AttemptSettings, JobSpec


def make_exit(code: int = 0, **more: Any) -> Exit:
    """Return an exit status; all fields that are not given are those of a success."""
    usual: dict[str, Any] = {"signal": None, "sent_signal": None, "end_request": None, "oom": False}
    times = {"began_at": 0.0, "ended_at": 1.0, "seconds": 1.0, "max_rss_bytes": 0, "cpu_seconds": 0.0}
    return Exit(**{"code": code, "message": "", **usual, **times, "log_lost_bytes": 0, "ranks": (), **more})


KILLED = make_exit(137, signal="SIGKILL")
CRASHED = make_exit(139, signal="SIGSEGV", seconds=1.24)


@pytest.mark.parametrize(
    ("exit", "more", "action", "state"),
    [
        (make_exit(0), {}, "finish", "SUCCEEDED"),
        (make_exit(3), {}, "finish", "FAILED"),
        (make_exit(0, end_request="timeout"), {}, "finish", "TIMEOUT"),
        (make_exit(137, oom=True, signal="SIGKILL"), {}, "finish", "OUT_OF_MEMORY"),
        (KILLED, {}, "retry_or_fail", "FAILED"),
        (None, {}, "retry_or_fail", "NODE_FAIL"),
        (None, {"failure": "reboot"}, "retry", "NODE_FAIL"),
        (None, {"failure": "node_lost"}, "requeue", "NODE_FAIL"),
        (None, {"failure": "node_lost", "is_array": True}, "requeue", "NODE_FAIL"),
        (None, {"failure": "node_lost", "end_reason": "stop"}, "yield", "NODE_FAIL"),
        (KILLED, {"is_array": True}, "retry", "FAILED"),
        (make_exit(1), {"is_array": True}, "retry", "FAILED"),
        (make_exit(75), {}, "retry", "REQUEUE"),
        (make_exit(75), {"progressed": True}, "requeue", "REQUEUE"),
        (make_exit(75), {"lasted_s": 60.0}, "requeue", "REQUEUE"),
        (make_exit(75), {"end_reason": "stop"}, "yield", "REQUEUE"),
        (KILLED, {"holds_lease": False}, "yield", "FAILED"),
        (make_exit(143, signal="SIGTERM", end_request="stop"), {}, "requeue", "FAILED"),
        (make_exit(0), {"end_reason": "stop"}, "finish", "SUCCEEDED"),
        (make_exit(0), {"cancelled": True}, "finish", "CANCELLED"),
        (KILLED, {"cancelled": True, "end_reason": "stop"}, "finish", "CANCELLED"),
        (KILLED, {"end_reason": "budget"}, "finish", "FAILED"),
        (CRASHED, {}, "retry_or_fail", "FAILED"),
        (CRASHED, {"crash": "SIGSEGV"}, "finish", "FAILED"),
        (CRASHED, {"crash": "SIGABRT"}, "retry_or_fail", "FAILED"),
        (CRASHED, {"crash": "SIGSEGV", "progressed": True}, "retry_or_fail", "FAILED"),
        (CRASHED, {"crash": "SIGSEGV", "retry_on": ("crash",)}, "retry_or_fail", "FAILED"),
        (CRASHED, {"retry_on": ("node_fail",)}, "finish", "FAILED"),
        (make_exit(139, signal="SIGSEGV", seconds=60.0), {"crash": "SIGSEGV"}, "retry_or_fail", "FAILED"),
        (make_exit(3), {"retry_on": ("error",)}, "retry_or_fail", "FAILED"),
        (make_exit(0, end_request="timeout"), {"retry_on": ("timeout",)}, "retry_or_fail", "TIMEOUT"),
        (None, {"retry_on": ()}, "finish", "NODE_FAIL"),
    ],
)
def test_an_exit_is_mapped_to_an_action(
    exit: Exit | None, more: dict[str, Any], action: str, state: str
) -> None:
    given = {"holds_lease": True, "progressed": False, "lasted_s": 1.0, **more}
    spec = JobSpec("1", ("true",), retry_on=given.pop("retry_on", None))
    job = JobRecord(spec, {}, 0.0, cancelled=given.pop("cancelled", False), crash=given.pop("crash", ""))
    attempt = AttemptRecord(["1"], ((0, 1),), AttemptSettings(), 0.0, exit=exit)
    for name in ("is_array", "end_reason", "failure"):
        if name in given:
            setattr(attempt, name, given.pop(name))
    decision = decide_exit(job, attempt, **given)
    assert (decision.action, decision.state) == (action, state)


def test_a_crash_is_described_by_its_signal_and_time() -> None:
    assert describe_exit(CRASHED) == "It was killed by SIGSEGV 1.2 s after its start."
    assert "SIGSEGV" in describe_exit(make_exit(139))
    assert describe_exit(make_exit(3)) == ""


def test_a_stop_says_why_and_what_was_lost() -> None:
    attempt = AttemptRecord(["1"], ((0, 1),), AttemptSettings(), 0.0)
    assert describe_stop(attempt, saved=False) == "It was stopped for others."
    attempt.unsaved_s = 42.0
    assert describe_stop(attempt, saved=True) == "It was stopped for others."
    assert describe_stop(attempt, saved=False) == "It was stopped for others; it had not saved the last 42 s."
    attempt.for_budget = True
    assert describe_stop(attempt, saved=True) == "It was stopped to hold the energy budget."
