import math

from support.ruled_simulations import simulate_ruled
from wattline.core.reasons import Reason
from wattline.rules.rule_set import RuleSet


def test_jobs_of_a_drained_node_run_on_and_no_other_starts_there() -> None:
    jobs = {"submit_s": [0, 10, 20], "gpus": [8] * 3, "duration_s": [100.0] * 3}
    run = simulate_ruled(RuleSet(), "2xv100:8", jobs, drains=[(0, 5.0, 300.0)])
    assert run.end_s == [100.0, 110.0, 210.0]
    assert run.nodes == [[0], [1], [1]]
    assert run.reasons[2] == [Reason.NO_ROOM]


def test_a_job_starts_when_the_node_is_back() -> None:
    jobs = {"submit_s": [10], "gpus": [16], "duration_s": [100.0]}
    run = simulate_ruled(RuleSet(), "2xv100:8", jobs, drains=[(0, 5.0, 300.0), (1, 0.0, 200.0)])
    assert run.start_s == [300.0]
    assert run.reasons[0] == [Reason.NO_ROOM]


def test_a_node_may_stay_drained() -> None:
    jobs = {"submit_s": [10], "gpus": [16], "duration_s": [100.0]}
    run = simulate_ruled(RuleSet(), "2xv100:8", jobs, drains=[(0, 5.0, math.inf)])
    assert run.start_s == [math.inf]
