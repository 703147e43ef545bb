"""Recorded jobs as they ran, and under policies that know only their time limits."""

from __future__ import annotations

import numpy as np
import pytest

from wattline.backend.replay import Replay
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.recorded import RecordedCase, simulate_policy, simulate_record
from wattline.cluster import nodes
from wattline.core.events import EVENT_AT_S
from wattline.core.jobs import PREEMPTIBLE_ALWAYS, PREEMPTIBLE_NEVER, Jobs
from wattline.loop.run import run
from wattline.models.trace_model import TraceModels
from wattline.placement.pack import Pack
from wattline.policy.parser import parse_policy
from wattline.reports import report

MODELS = TraceModels()


@pytest.fixture
def case() -> RecordedCase:
    """Two GPUs: one was held until 50 at the beginning; then a job of 100, one of 10 and one of 30."""
    jobs = Jobs.of(
        submit_s=[-10, 0, 5, 6],
        gpus=[1, 1, 1, 1],
        duration_s=[50, 100, 10, 30],
        preemptible=[PREEMPTIBLE_NEVER, *[PREEMPTIBLE_ALWAYS] * 3],
    )
    return RecordedCase(
        jobs=jobs,
        nodes=nodes("a100", gpus=2),
        assumed_s=np.array([60.0, 20.0, 200.0, 40.0]),
        running={0: ((0, 1),)},
        starts=[(0.0, 1, ((0, 1),)), (50.0, 2, ((0, 1),)), (60.0, 3, ((0, 1),))],
        about={"name": "test"},
    )


def test_the_record_is_simulated_as_it_was(case: RecordedCase) -> None:
    log = simulate_record(case, MODELS, until_s=120.0)
    result = report(log)
    assert (result.finished, result.preemptions) == (4, 0)
    assert log.end_s == 120
    # Ends at 50, 100, 60 and 90, after submissions at -10, 0, 5 and 6.
    assert result.jct_mean_s == pytest.approx((60 + 100 + 55 + 84) / 4)
    idle_w, busy_w = float(case.nodes.idle_w[0]), float(case.nodes.busy_w[0])
    base_j = (float(case.nodes.base_w[0]) + 2 * idle_w) * 120
    assert result.energy_j == pytest.approx(base_j + (busy_w - idle_w) * (50 + 100 + 10 + 30))


def test_a_policy_decides_by_time_limits_and_not_by_recorded_durations(case: RecordedCase) -> None:
    log = simulate_policy(case, parse_policy("sjf+keep"), MODELS, Pack(), Overheads())
    ends = {event.job: event.at_s for round_ in log for event in round_.events if event.verb == 4}
    # The limits of the last two are 200 and 40: the one that is longer in reality goes first.
    assert ends == {0: 50, 1: 100, 3: 80, 2: 90}


def test_a_job_that_ran_before_is_not_stopped(case: RecordedCase) -> None:
    log = simulate_policy(case, parse_policy("srtf"), MODELS, Pack(), Overheads())
    assert 0 not in {action[1] for round_ in log for action in round_.actions.tolist() if action[0] == 1}


def test_both_count_the_energy_until_the_same_time(case: RecordedCase) -> None:
    logs = (
        simulate_record(case, MODELS, 150.0),
        simulate_policy(case, parse_policy("fifo"), MODELS, Pack(), Overheads(), 150.0),
    )
    assert [log.events[-1, EVENT_AT_S] for log in logs] == [150, 150]
    # The same work at the same power: only its order differs.
    assert report(logs[0]).energy_j == pytest.approx(report(logs[1]).energy_j)


def test_the_log_of_a_policy_can_be_replayed(case: RecordedCase) -> None:
    policy = parse_policy("las")
    log = simulate_policy(case, policy, MODELS, Pack(), Overheads(), 80.0)
    backend = Replay(log)
    again = run(backend, policy, MODELS, place=Pack(), initial_state=backend.initial_state)
    assert np.array_equal(again.actions, log.actions)
    assert len(log.actions)
