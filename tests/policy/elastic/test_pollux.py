"""Equal speed-ups for all, in cases small enough to do by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.power_law_models import (
    PowerLawModels,
    build_power_law_jobs,
    first_gpus_by_job,
    simulate_power_law,
    snapshot_after,
    snapshot_of_waiting,
    start_sizes,
)
from wattline.cluster import nodes
from wattline.core.jobs import Jobs
from wattline.errors import ConfigError
from wattline.models import TraceModels
from wattline.policy import Pollux
from wattline.policy.parser import parse_policy

ALPHAS = ("0", "0.3", "0.5", "0.7", "0.9", "1")


def test_one_job_that_scales_gets_all() -> None:
    assert first_gpus_by_job(Pollux(), build_power_law_jobs(["1"], [100]), gpus=8) == {"a": 8}


def test_equal_jobs_get_equal_shares() -> None:
    jobs = build_power_law_jobs(["0.7"] * 4, [100, 1000, 10, 1], gpus=[1, 2, 4, 8])
    assert first_gpus_by_job(Pollux(), jobs, gpus=16) == {"a": 4, "b": 4, "c": 4, "d": 4}


def test_gpus_that_make_no_job_faster_stay_idle() -> None:
    assert first_gpus_by_job(Pollux(), build_power_law_jobs(["0", "0.5"], [100, 100]), gpus=16) == {
        "a": 1,
        "b": 8,
    }


def test_with_more_jobs_than_gpus_the_first_run() -> None:
    assert first_gpus_by_job(Pollux(), build_power_law_jobs(["0.5"] * 3, [100] * 3), gpus=2) == {
        "a": 1,
        "b": 1,
        "c": 0,
    }


def test_the_bounds_of_users_hold() -> None:
    jobs = build_power_law_jobs(
        ["1", "1", "1"], [1e4, 1e4, 1e4], gpus=[4, 2, 3], min_gpus=[4, 0, 2], max_gpus=[4, 2, 0]
    )
    assert first_gpus_by_job(Pollux(), jobs, gpus=16) == {"a": 4, "b": 2, "c": 8}


def power_mean(jobs: Jobs, gpus: dict[str, int], total: int, p: float) -> float:
    """The paper's figure of merit of an allocation."""
    power = np.array([float(word) for word in jobs.model.words()])
    share = max(total / len(jobs), 1.0)  # sizes beside it are interpolated, so take totals that fit
    speedup = np.array([gpus[job] for job in jobs.id]) ** power / share**power + 1e-3
    speedup[[gpus[job] == 0 for job in jobs.id]] = 1e-3
    return float(np.mean(speedup**p) ** (1 / p) if p else np.exp(np.mean(np.log(speedup))))


@given(
    alphas=st.lists(st.sampled_from(ALPHAS), min_size=2, max_size=3),
    each=st.sampled_from((1, 2, 4)),
    fairness=st.sampled_from((-2.0, -1.0, 0.0, 0.5)),
)
def test_no_other_allocation_is_much_better(alphas: list[str], each: int, fairness: float) -> None:
    total = each * len(alphas)
    jobs = build_power_law_jobs(alphas, [1000.0] * len(alphas))
    found = power_mean(jobs, first_gpus_by_job(Pollux(fairness=fairness), jobs, gpus=total), total, fairness)
    best = max(
        power_mean(jobs, dict(zip(jobs.id, each, strict=True)), total, fairness)
        for each in itertools.product((0, 1, 2, 4, 8), repeat=len(alphas))
        if sum(each) <= total
    )
    assert found >= 0.93 * best


def test_a_small_exponent_favours_the_worst_off_job() -> None:
    jobs = build_power_law_jobs(["0.3", "1"], [100, 100])
    assert (
        first_gpus_by_job(Pollux(fairness=1.0), jobs, gpus=8)["b"]
        >= first_gpus_by_job(Pollux(fairness=-8.0), jobs, gpus=8)["b"]
    )
    assert first_gpus_by_job(Pollux(fairness=-8.0), jobs, gpus=8) == {"a": 4, "b": 4}


def test_larger_batches_only_where_allowed() -> None:
    more = {"batch": [32] * 3, "max_batch": [256, 0, 32], "noise": [1e6] * 3}
    state = snapshot_of_waiting(build_power_law_jobs(["0.5"] * 3, [100] * 3, **more), nodes("v100", gpus=4))
    plan = Pollux()(state, PowerLawModels())
    assert plan.batch is not None
    assert dict(zip(plan.row.tolist(), plan.batch.tolist(), strict=True)) == {0: 256, 1: 0, 2: 0}


def test_a_young_job_is_not_restarted_for_little_and_an_older_one_is() -> None:
    # Twice the GPUs are 1.41 times the speed, of which a restart at age T leaves T / (T + 30): enough at 73 s
    jobs = build_power_law_jobs(["0.5", "0.5"], [40 * math.sqrt(2), 1000])
    log = simulate_power_law(jobs, Pollux(), nodes("v100", gpus=4), restart_s=30)
    assert start_sizes(log, "b") == [(0, 2), (100, 4)]  # a ends at 40; asked again after a minute
    free = simulate_power_law(jobs, Pollux(restart_s=0), nodes("v100", gpus=4))
    assert start_sizes(free, "b") == [(0, 2), (40, 4)]


def test_a_job_explores_by_doubling_the_most_gpus_it_has_had() -> None:
    jobs = build_power_law_jobs(["1"], [10_000], gpus=[8])
    policy = Pollux(explore=2.0, interval_s=60.0, restart_s=0.0)
    log = simulate_power_law(jobs, policy, nodes("v100", gpus=8))
    assert start_sizes(log, "a") == [(0, 1), (60, 2), (120, 4), (180, 8)]
    with pytest.raises(ConfigError, match="explore must be 0, or above 1 and finite, got 1"):
        Pollux(explore=1.0)


def test_no_further_decision_is_planned_when_no_restart_is_put_off() -> None:
    state = snapshot_of_waiting(build_power_law_jobs(["0.5"] * 2, [100] * 2), nodes("v100", gpus=4))
    plan = Pollux()(state, PowerLawModels())
    assert plan.next_decision_s == math.inf
    assert Pollux()(snapshot_after(state, plan, 10.0), PowerLawModels()).next_decision_s == math.inf


def test_knobs_are_parsed_and_checked() -> None:
    assert parse_policy("pollux") == Pollux()
    assert parse_policy("pollux:interval=5m,fairness=0") == Pollux(300.0, 0.0)
    for bad in ("interval=0", "fairness=2", "fairness=nan", "fairness=-1000", "restart=-1"):
        with pytest.raises(ConfigError, match=bad.partition("=")[0]):
            parse_policy(f"pollux:{bad}")


def test_the_least_fairness_that_is_allowed_can_be_computed() -> None:
    state = snapshot_of_waiting(build_power_law_jobs(["0.5"] * 2, [100] * 2), nodes("v100", gpus=4))
    assert Pollux(fairness=-100.0)(state, PowerLawModels()).gpus.tolist() == [2, 2]


def test_an_empty_queue_makes_an_empty_plan() -> None:
    state = snapshot_of_waiting(Jobs.of(submit_s=[], gpus=[], duration_s=[]), nodes("v100"), now_s=0.0)
    assert len(Pollux()(state, TraceModels())) == 0
