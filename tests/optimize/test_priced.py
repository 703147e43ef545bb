"""Prices of GPUs lead to a good decision and to a bound, with few jobs and with many."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.optimize_instances import build_instance, instances
from wattline.optimize.decide import Effort, decide
from wattline.optimize.exact import compute_cost, solve
from wattline.optimize.instance import POSTPONED, Instance, check_assignment, count_busy_gpus
from wattline.optimize.objective import rolling, to_the_end
from wattline.optimize.priced import assign_by_prices

OBJECTIVES = (to_the_end, rolling)


def draw_instance(seed: int, jobs: int, nodes: tuple[int, int]) -> Instance:
    rng = np.random.default_rng(seed)
    one = rng.uniform(2_000, 30_000, jobs)
    left_s = np.stack((one, one / rng.uniform(1.1, 1.9, jobs), one * rng.uniform(1.2, 2.8, jobs)), axis=1)
    due_s = rng.uniform(-10_000, 60_000, jobs)
    late = rng.uniform(2e-4, 5e-4, jobs)
    return build_instance(left_s.tolist(), due_s.tolist(), late.tolist(), nodes=nodes)


@settings(deadline=None)
@given(instance=instances(), objective=st.sampled_from(OBJECTIVES))
def test_the_best_is_between_bound_and_cost(instance: Instance, objective) -> None:  # type: ignore[no-untyped-def]
    charges = objective(instance)
    found = assign_by_prices(instance, charges)
    best = solve(instance, charges, gap=1e-9)
    assert best is not None
    check_assignment(instance, found)
    slack = 1e-6 * max(1.0, abs(best.cost))
    assert found.bound - slack <= best.cost <= found.cost + slack
    assert found.cost == pytest.approx(compute_cost(instance, charges, found), rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(instance=instances(), objective=st.sampled_from(OBJECTIVES))
def test_no_job_waits_beside_free_gpus(instance: Instance, objective) -> None:  # type: ignore[no-untyped-def]
    found = assign_by_prices(instance, objective(instance))
    used = count_busy_gpus(instance, found)
    free = [int((gpus - of).max(initial=0)) for gpus, of in zip(instance.gpus, used, strict=True)]
    for job in np.flatnonzero(found.config == POSTPONED).tolist():
        for config in np.flatnonzero(instance.possible[job]).tolist():
            assert free[instance.config_node_type[config]] < instance.config_gpus[config]


def test_one_job_has_its_best_slot_and_no_gap() -> None:
    for seed in range(5):
        instance = draw_instance(seed, 1, (3, 3))
        found = assign_by_prices(instance, rolling(instance))
        assert found.cost == pytest.approx(found.bound, rel=1e-12)


@pytest.mark.parametrize(("jobs", "most"), [(100, 0.05), (2_000, 0.05)])
def test_the_gap_is_small_on_quiet_and_on_crowded_nodes(jobs: int, most: float) -> None:
    for seed in range(3):
        instance = draw_instance(seed, jobs, (100, 100))  # 600 GPUs
        found = assign_by_prices(instance, rolling(instance))
        check_assignment(instance, found)
        assert 0.0 <= found.gap < most


def test_a_decision_that_is_cut_short_has_a_gap_and_the_best_is_within_it() -> None:
    instance = draw_instance(0, 60, (5, 5))
    charges = rolling(instance)
    none = np.full(instance.jobs, POSTPONED)
    short = decide(instance, charges, "exact", none, none, Effort(tries=10, most=instance.jobs * 10 - 1))
    whole = decide(instance, charges, "exact", none, none, Effort(tries=10))
    assert short.method == "prices"
    assert whole.method == "exact"
    assert short.gap > whole.gap
    assert whole.assignment.cost >= short.assignment.cost * (1.0 - short.gap) - 1e-9
