"""A walk between good decisions finds better ones, and never answers a worse one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.optimize_instances import build_instance, instances
from wattline.optimize.exact import compute_cost, solve
from wattline.optimize.greedy import randomised
from wattline.optimize.instance import POSTPONED, Assignment, Instance, check_assignment
from wattline.optimize.objective import Charges, rolling, to_the_end
from wattline.optimize.relink import _build_pool, _walk_between, relink
from wattline.optimize.search import improve

OBJECTIVES = (to_the_end, rolling)
BUSY = range(6)  # seeds of busy moments


def draw_busy_instance(seed: int, jobs: int = 36) -> Instance:
    """Ten nodes with 30 GPUs, and more jobs than these, most of which are late."""
    rng = np.random.default_rng(seed)
    one = rng.uniform(2_000, 30_000, jobs)
    left_s = np.stack((one, one / rng.uniform(1.1, 1.9, jobs), one * rng.uniform(1.2, 2.8, jobs)), axis=1)
    due_s = rng.uniform(-10_000, 20_000, jobs)
    return build_instance(
        left_s.tolist(), due_s.tolist(), rng.uniform(2e-4, 5e-4, jobs).tolist(), nodes=(5, 5)
    )


def searched(instance: Instance, charges: Charges, tries: int, seed: int) -> Assignment:
    return improve(instance, charges, randomised(instance, charges, tries, seed))


@settings(deadline=None)
@given(
    instance=instances(),
    objective=st.sampled_from(OBJECTIVES),
    seed=st.integers(0, 3),
    tries=st.sampled_from((1, 7, 50)),
    elites=st.integers(1, 6),
)
def test_it_is_no_worse_than_search_and_no_better_than_the_best(  # type: ignore[no-untyped-def]
    instance: Instance, objective, seed: int, tries: int, elites: int
) -> None:
    charges = objective(instance)
    found = relink(instance, charges, tries, seed, elites)
    check_assignment(instance, found)
    assert found.cost == pytest.approx(compute_cost(instance, charges, found), rel=1e-9, abs=1e-12)
    assert found.cost <= searched(instance, charges, tries, seed).cost
    best = solve(instance, charges, gap=1e-9)
    assert best is not None
    assert found.cost >= best.cost - 1e-6 * max(1.0, abs(best.cost))


@settings(deadline=None)
@given(instance=instances(), objective=st.sampled_from(OBJECTIVES), seeds=st.tuples(*[st.integers(0, 9)] * 2))
def test_every_point_of_a_walk_fits_on_the_nodes(
    instance: Instance, objective, seeds: tuple[int, int]
) -> None:  # type: ignore[no-untyped-def]
    charges = objective(instance)
    start, target = (randomised(instance, charges, 2, seed) for seed in seeds)
    found = _walk_between(instance, charges, start, target)
    check_assignment(instance, found)
    assert found.cost == pytest.approx(compute_cost(instance, charges, found), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_it_often_finds_what_search_alone_does_not(objective) -> None:  # type: ignore[no-untyped-def]
    better = 0
    for seed in BUSY:
        instance = draw_busy_instance(seed)
        charges = objective(instance)
        found, alone = relink(instance, charges, 200, seed), searched(instance, charges, 200, seed)
        check_assignment(instance, found)
        assert found.cost <= alone.cost
        better += found.cost < alone.cost * (1 - 1e-6)
    assert better > len(BUSY) / 2


def test_a_walk_finds_what_none_of_its_ends_is() -> None:
    better = 0
    for seed in BUSY:
        instance = draw_busy_instance(seed)
        charges = to_the_end(instance)
        pool = _build_pool(instance, charges, 200, seed, 10)
        start = min(pool, key=lambda one: one.cost)
        better += any(
            _walk_between(instance, charges, start, end).cost < start.cost * (1 - 1e-6) for end in pool
        )
    assert better


def test_a_walk_goes_through_a_worse_point_to_let_a_job_in() -> None:
    """Two jobs have two GPUs of four each and a third waits; at the target all have one."""
    instance = build_instance([[9000, 8000, np.inf]] * 3, [0.0] * 3, nodes=(1, 0))
    charges = to_the_end(instance)
    start = Assignment(np.array([1, 1, POSTPONED]), np.array([0, 0, -1]), np.nan)
    stuck = improve(instance, charges, start)
    assert stuck.config.tolist() == start.config.tolist()
    target = Assignment(np.array([0, 0, 0]), np.array([0, 0, 0]), np.nan)
    found = _walk_between(instance, charges, stuck, target)
    assert (found.config != POSTPONED).all()
    assert found.cost < stuck.cost


def test_a_walk_to_the_same_assignment_changes_nothing() -> None:
    instance = draw_busy_instance(0)
    charges = rolling(instance)
    start = searched(instance, charges, 20, 0)
    assert _walk_between(instance, charges, start, start) is start


@given(instance=instances(), seed=st.integers(0, 3))
def test_a_seed_decides_everything(instance: Instance, seed: int) -> None:
    charges = rolling(instance)
    first, again = (relink(instance, charges, 20, seed, 4) for _ in range(2))
    assert first.cost == again.cost
    assert first.config.tolist() == again.config.tolist()
    assert first.node.tolist() == again.node.tolist()


def test_one_of_a_pool_alone_is_what_search_finds() -> None:
    instance = draw_busy_instance(1)
    charges = to_the_end(instance)
    alone = searched(instance, charges, 50, 3)
    assert relink(instance, charges, 50, 3, elites=1).config.tolist() == alone.config.tolist()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_instances_without_jobs_or_nodes_are_solved(objective) -> None:  # type: ignore[no-untyped-def]
    empty = build_instance([], [])
    assert len(relink(empty, objective(empty)).config) == 0
    without = build_instance([[100, 90, 200]] * 2, [50, 60], nodes=(0, 0))
    found = relink(without, objective(without))
    assert found.config.tolist() == [POSTPONED] * 2
    assert found.cost == pytest.approx(objective(without).wait_cost.sum())


def test_a_job_that_fits_nowhere_waits_and_the_others_run() -> None:
    instance = build_instance([[np.inf, np.inf, 100], [500, 400, np.inf]], [50, 50], nodes=(1, 0))
    assert (relink(instance, rolling(instance)).config == POSTPONED).tolist() == [True, False]
