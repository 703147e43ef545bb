"""Sia on clusters small enough to try every allocation."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
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
from wattline import policy as p
from wattline.cluster import join_nodes, nodes
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.quotas import Quotas
from wattline.core.table import Floats
from wattline.errors import ConfigError
from wattline.testing import PolicyContract, QuotaContract
from wattline.testing.scenarios import Scenario, quotas, scenarios

MIXED = join_nodes(nodes("v100", count=2, gpus=4), nodes("a100", count=1, gpus=4))
A100 = MIXED.kind.names.index("a100")


@pytest.mark.slow
class TestSia(PolicyContract):
    policy = p.Sia()

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(scenario=scenarios(max_jobs=6))
    def test_a_run_obeys_every_law(self, scenario: Scenario) -> None:
        self.check_scenario(scenario)


class TestQuotas(QuotaContract):
    policy = p.Sia(interval_s=7200.0)  # quotas of a week are many intervals

    @pytest.mark.slow
    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @given(scenario=scenarios(max_jobs=6), limits=quotas())
    def test_no_job_starts_beyond_a_quota(self, scenario: Scenario, limits: Quotas) -> None:
        QuotaContract.test_no_job_starts_beyond_a_quota.hypothesis.inner_test(self, scenario, limits)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class KindModels(PowerLawModels):
    """Power law in which a job is faster on A100 by its noise scale, which has no other use here."""

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        on_a100 = np.array([name == "a100" for name in grants.kind.names])[grants.kind.codes]
        gain = 1.0 + jobs.noise[grants.job]
        return super().speed(jobs, grants) * np.where(on_a100, gain, 1.0)


def find_least_cost(jobs: Jobs, policy: p.Sia) -> float:
    """Return the least cost of all allocations of waiting *jobs* on `MIXED`, by trying each."""
    room = {A100: 4, 1 - A100: 8}
    options = [None, *((kind, gpus) for kind in room for gpus in (1, 2, 4, 8) if gpus <= room[kind])]
    power = [float(jobs.model.word(row)) for row in range(len(jobs))]
    least = math.inf
    for chosen in itertools.product(options, repeat=len(jobs)):
        used, cost = {A100: 0, 1 - A100: 0}, 0.0
        for row, option in enumerate(chosen):
            if option is None:
                cost += policy.lambda_n
                continue
            kind, gpus = option
            used[kind] += gpus
            # One V100 is its slowest, and the fewest GPUs are 1.
            cost += (gpus ** power[row] * (1 + jobs.noise[row] * (kind == A100))) ** policy.p
        if all(used[kind] <= room[kind] for kind in room):
            least = min(least, cost)
    return least


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    powers=st.lists(st.sampled_from(("0.3", "0.5", "0.9", "1")), min_size=2, max_size=4),
    gains=st.lists(st.sampled_from((0.0, 0.5, 3.0)), min_size=4, max_size=4),
)
def test_the_plan_costs_as_little_as_any_allocation(powers: list[str], gains: list[float]) -> None:
    jobs = build_power_law_jobs(powers, [1000.0] * len(powers), noise=gains[: len(powers)])
    policy = p.Sia(gap=0.0)
    state = snapshot_of_waiting(jobs, MIXED)
    plan = policy(state, KindModels())
    assert plan.kind is not None
    cost = policy.lambda_n * (len(jobs) - len(plan))
    for row, gpus, kind in zip(plan.row.tolist(), plan.gpus.tolist(), plan.kind.tolist(), strict=True):
        gain = 1 + jobs.noise[row] * (kind == A100)
        cost += (gpus ** float(jobs.model.word(row)) * gain) ** policy.p
    assert cost == pytest.approx(find_least_cost(jobs, policy), rel=1e-6)
    assert plan.gap <= 1e-6


def test_the_fast_kind_goes_to_the_job_that_gains_from_it() -> None:
    jobs = build_power_law_jobs(["0", "0"], [1000.0] * 2, gpus=[4, 4], min_gpus=[4, 4], noise=[0.0, 3.0])
    plan = p.Sia()(snapshot_of_waiting(jobs, MIXED), KindModels())
    assert plan.kind is not None
    assert dict(zip(plan.row.tolist(), plan.kind.tolist(), strict=True))[1] == A100


def test_a_high_price_of_no_gpus_lets_every_job_run_first() -> None:
    jobs = build_power_law_jobs(["1"] * 4, [1000.0] * 4)
    # Two GPUs for two jobs cost 2 * 2^-0.5 + 2 * 1.1 = 3.6, one for each 4: the published price of waiting.
    assert first_gpus_by_job(p.Sia(), jobs, gpus=4) == {"a": 2, "b": 2, "c": 0, "d": 0}
    assert first_gpus_by_job(p.Sia(lambda_n=2.0), jobs, gpus=4) == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert first_gpus_by_job(p.Sia(), jobs, gpus=8) == {"a": 2, "b": 2, "c": 2, "d": 2}


def test_freed_gpus_wait_for_the_end_of_the_interval() -> None:
    jobs = build_power_law_jobs(["1", "1"], [1000.0, 4000.0])
    log = simulate_power_law(jobs, p.Sia(interval_s=700.0), nodes("v100", count=4, gpus=1))
    # Each has two GPUs; a ends at 500, and b has four from 700 on.
    assert start_sizes(log, "b") == [(0.0, 2), (700.0, 4)]


def test_a_young_job_is_not_restarted_for_a_small_gain() -> None:
    jobs = build_power_law_jobs(["0.3", "0.3"], [60.0, 6000.0])
    cluster = nodes("v100", count=4, gpus=1)
    dear = simulate_power_law(jobs, p.Sia(restart_s=1e6), cluster)
    free = simulate_power_law(jobs, p.Sia(restart_s=0.0), cluster)
    assert [gpus for _, gpus in start_sizes(dear, "b")] == [2]
    assert [gpus for _, gpus in start_sizes(free, "b")] == [2, 4]


@pytest.mark.slow
def test_a_running_job_is_not_stopped_for_an_equal_one() -> None:
    jobs = build_power_law_jobs(["1"] * 3, [5000.0] * 3, submit_s=[0.0, 10.0, 20.0])
    log = simulate_power_law(jobs, p.Sia(), nodes("v100", count=1, gpus=1))
    assert [len(start_sizes(log, job)) for job in "abc"] == [1, 1, 1]


def test_within_an_interval_running_jobs_stay_as_they_are() -> None:
    jobs = build_power_law_jobs(["1", "1"], [1e4, 1e4], submit_s=[0.0, 10.0])
    policy, models = p.Sia(), PowerLawModels()
    cluster = nodes("v100", count=4, gpus=1)
    first = snapshot_of_waiting(jobs.take(slice(0, 1)), cluster)
    plan = policy(first, models)
    assert plan.gpus.tolist() == [4]
    held = snapshot_after(first, plan, 30.0)
    assert held.now_s == 30.0
    again = policy(replace(held, note=plan.note), models)
    assert again.gpus.tolist() == [4]
    assert again.next_decision_s == 60.0


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"interval_s": 0.0}, "interval_s must be at least 1"),
        ({"p": 0.0}, "p must be from -10 to 1, and not 0"),
        ({"p": 2.0}, "p must be from -10 to 1"),
        ({"lambda_n": 0.9}, "lambda_n must be above 1"),
        ({"lambda_a": -1.0}, "lambda_a must be at least 0"),
        ({"restart_s": math.inf}, "restart_s must be at least 0 and finite"),
        ({"gap": 1.0}, "gap must be at least 0 and below 1"),
        ({"node_limit": 0}, "node_limit must be at least 1"),
    ],
)
def test_impossible_knobs_are_refused(knobs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        p.Sia(**knobs)  # type: ignore[arg-type]
