"""Attempts of a job, from its events."""

from __future__ import annotations

from typing import Any

from wattline.service.attempts import CapChange, build_attempts
from wattline.service.storage.events import StoredEvent


def event(seq: int, event_kind: str, **data: Any) -> StoredEvent:
    return StoredEvent(100.0 + seq, event_kind, "1", data, seq)


def start(seq: int, attempt: int, cap_w: float | None = 300.0) -> StoredEvent:
    allocation = {"gpus": [0, 1], "kind": "a100", "batch": 0, "cpus": 4, "fused_with": ["2"]}
    return event(seq, "started", attempt=attempt, cap_w=cap_w, **allocation)


def end(seq: int, kind: str, energy_j: float | None, **more: Any) -> StoredEvent:
    return event(seq, kind, energy_j=energy_j, energy_method="nvml", message="", **more)


def test_the_energy_of_an_attempt_is_the_difference_of_totals() -> None:
    events = [
        event(1, "accepted"), start(2, 1), end(5, "stopped", 40.0), start(7, 2),
        end(9, "ended", 100.0, state="SUCCEEDED"),
    ]  # fmt: skip
    first, second = build_attempts(events, None)
    assert (first.energy_j, first.outcome, first.start_s, first.end_s) == (40.0, "REQUEUED", 102.0, 105.0)
    assert (second.energy_j, second.outcome, second.fused_with) == (60.0, "SUCCEEDED", ["2"])


def test_an_unknown_total_makes_its_attempt_and_the_next_unknown() -> None:
    events = [start(1, 1), end(2, "retry", None), start(3, 2), end(4, "ended", 70.0, state="FAILED")]
    assert [one.energy_j for one in build_attempts(events, None)] == [None, None]


def test_caps_have_times_and_origins() -> None:
    events = [
        start(1, 1, 300.0), event(2, "retuned", cap_w=250.0), event(3, "retuned", cap_w=250.0),
        event(4, "retuned", cap_w=None),
    ]  # fmt: skip
    (attempt,) = build_attempts(events, 250.0)
    assert attempt.caps == [
        CapChange(101.0, 300.0, "policy"),
        CapChange(102.0, 250.0, "job file"),
        CapChange(104.0, None, "policy"),
    ]
    assert attempt.end_s is None
    assert attempt.outcome == ""


def test_a_job_that_never_started_has_no_attempts() -> None:
    events = [event(1, "accepted"), end(2, "ended", 0.0, state="CANCELLED")]
    assert build_attempts(events, None) == []
