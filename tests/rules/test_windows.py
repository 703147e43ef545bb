from typing import Any

import pytest

from support.ruled_simulations import RuledRun, simulate_ruled
from wattline.core.reasons import Reason
from wattline.errors import ConfigError
from wattline.policy.ordering import Las
from wattline.rules.rule_set import ReservationRule, RuleSet

NEVER = float("inf")


def simulate(*reservations: ReservationRule, **more: Any) -> RuledRun:
    """Simulate jobs of 8 GPUs with a limit of 120 s on two nodes of 8 GPUs."""
    count = len(more["submit_s"])
    jobs: dict[str, Any] = {"gpus": [8] * count, "duration_s": [100.0] * count}
    recorded: dict[str, Any] = {"time_limit_s": [120.0] * count}
    for name in ("time_limit_s", "reservation"):
        if name in more:
            recorded[name] = more.pop(name)
    options = {name: more.pop(name) for name in ("policy", "origin_s") if name in more}
    return simulate_ruled(RuleSet(reservations=reservations), "2xv100:8", jobs | more, **options, **recorded)


SERVICE = ReservationRule("service", "1000", 500.0, maintenance=True)


def test_a_job_that_would_not_end_before_maintenance_waits_for_its_end() -> None:
    run = simulate(SERVICE, submit_s=[870, 880, 881, 890])
    assert run.start_s == [870.0, 880.0, 1500.0, 1500.0]
    assert run.reasons[2] == [Reason.NO_ROOM, Reason.MAINTENANCE]


def test_running_jobs_are_not_stopped_when_a_window_begins() -> None:
    run = simulate(SERVICE, submit_s=[870], duration_s=[400.0])  # beyond its limit, which does not kill it
    assert run.end_s == [1270.0]


def test_only_the_nodes_of_the_window_are_left_alone() -> None:
    half = ReservationRule("half", "1000", 500.0, "v100-0", maintenance=True)
    run = simulate(half, submit_s=[950, 950])
    assert (run.start_s, run.nodes[0]) == ([950.0, 1050.0], [1])


def test_a_window_may_repeat() -> None:
    daily = ReservationRule("daily", "1000", 500.0, maintenance=True, every_s=700.0)
    run = simulate(daily, submit_s=[990, 1600, 1690])
    assert run.start_s == [1500.0, 2200.0, 2200.0]


def test_a_job_longer_than_the_time_between_windows_never_starts() -> None:
    daily = ReservationRule("daily", "1000", 500.0, maintenance=True, every_s=700.0)
    run = simulate(daily, submit_s=[0, 10], time_limit_s=[300.0, 120.0], policy=Las(10.0))
    assert run.start_s == [NEVER, 10.0]
    assert run.reasons[0] == [Reason.WINDOW_LIMIT]
    assert run.log.header["backend"] == "sim"
    assert max(row.now_s for row in run.log) < 2000.0  # the simulation ends when nothing can start


def test_a_reservation_is_for_the_jobs_that_name_it() -> None:
    lesson = ReservationRule("lesson", "1000", 500.0, "v100-0", accounts=("school",))
    run = simulate(
        lesson,
        submit_s=[950, 951, 1100, 1600],
        team=["school", "school", "school", "school"],
        reservation=["lesson", "", "", "lesson"],
    )
    assert run.start_s == [1000.0, 951.0, 1100.0, NEVER]
    assert run.nodes == [[0], [1], [1], []]
    assert run.reasons[0] == [Reason.RESERVATION]
    assert run.reasons[3] == [Reason.RESERVATION_OVER]


def test_a_reservation_does_not_admit_other_accounts() -> None:
    lesson = ReservationRule("lesson", "1000", 500.0, "v100-0", accounts=("school",))
    run = simulate(lesson, submit_s=[950], team=["nlp"], reservation=["lesson"])
    assert (run.start_s, run.reasons[0]) == ([NEVER], [Reason.RESERVATION_OVER])


def test_without_recorded_reservations_members_may_use_the_nodes() -> None:
    lesson = ReservationRule("lesson", "1000", 500.0, "ALL", users=("ann",))
    run = simulate(lesson, submit_s=[1100, 1101], user=["ann", "bob"])
    assert run.start_s == [1100.0, 1500.0]
    assert run.reasons[1] == [Reason.RESERVED]
    assert run.bound is not None
    assert any("does not record the reservations" in note for note in run.bound.notes)


def test_dates_need_a_trace_with_dates() -> None:
    dated = ReservationRule("dated", "1970-01-01T00:20:00", 500.0, maintenance=True)
    assert simulate(dated, submit_s=[950], origin_s=200.0).start_s == [1500.0]
    with pytest.raises(ConfigError, match="only seconds from a start"):
        simulate(dated, submit_s=[950])
    with pytest.raises(ConfigError, match="start is 'soon'"):
        simulate(ReservationRule("x", "soon", 1.0), submit_s=[0])
