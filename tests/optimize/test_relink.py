"""A walk between good decisions finds better ones, and never answers a worse one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.optimize_instances import build_instance, instances
from wattline.optimize.exact import charged, solve
from wattline.optimize.greedy import randomised
from wattline.optimize.instance import POSTPONED, Event, Schedule, check
from wattline.optimize.objective import Charges, rolling, to_the_end
from wattline.optimize.relink import _between, _pool, relink
from wattline.optimize.search import improve

OBJECTIVES = (to_the_end, rolling)
BUSY = range(6)  # seeds of busy moments


def busy_moment(seed: int, jobs: int = 36) -> Event:
    """Ten nodes with 30 GPUs, and more jobs than these, most of which are late."""
    rng = np.random.default_rng(seed)
    one = rng.uniform(2_000, 30_000, jobs)
    left_s = np.stack((one, one / rng.uniform(1.1, 1.9, jobs), one * rng.uniform(1.2, 2.8, jobs)), axis=1)
    due_s = rng.uniform(-10_000, 20_000, jobs)
    return build_instance(
        left_s.tolist(), due_s.tolist(), rng.uniform(2e-4, 5e-4, jobs).tolist(), nodes=(5, 5)
    )


def searched(moment: Event, charges: Charges, tries: int, seed: int) -> Schedule:
    return improve(moment, charges, randomised(moment, charges, tries, seed))


@settings(deadline=None)
@given(
    moment=instances(),
    objective=st.sampled_from(OBJECTIVES),
    seed=st.integers(0, 3),
    tries=st.sampled_from((1, 7, 50)),
    elites=st.integers(1, 6),
)
def test_it_is_no_worse_than_search_and_no_better_than_the_best(  # type: ignore[no-untyped-def]
    moment: Event, objective, seed: int, tries: int, elites: int
) -> None:
    charges = objective(moment)
    found = relink(moment, charges, tries, seed, elites)
    check(moment, found)
    assert found.worth == pytest.approx(charged(moment, charges, found), rel=1e-9, abs=1e-12)
    assert found.worth <= searched(moment, charges, tries, seed).worth
    best = solve(moment, charges, gap=1e-9)
    assert best is not None
    assert found.worth >= best.worth - 1e-6 * max(1.0, abs(best.worth))


@settings(deadline=None)
@given(moment=instances(), objective=st.sampled_from(OBJECTIVES), seeds=st.tuples(*[st.integers(0, 9)] * 2))
def test_every_point_of_a_walk_fits_on_the_nodes(moment: Event, objective, seeds: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    charges = objective(moment)
    start, target = (randomised(moment, charges, 2, seed) for seed in seeds)
    found = _between(moment, charges, start, target)
    check(moment, found)
    assert found.worth == pytest.approx(charged(moment, charges, found), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_it_often_finds_what_search_alone_does_not(objective) -> None:  # type: ignore[no-untyped-def]
    better = 0
    for seed in BUSY:
        moment = busy_moment(seed)
        charges = objective(moment)
        found, alone = relink(moment, charges, 200, seed), searched(moment, charges, 200, seed)
        check(moment, found)
        assert found.worth <= alone.worth
        better += found.worth < alone.worth * (1 - 1e-6)
    assert better > len(BUSY) / 2


def test_a_walk_finds_what_none_of_its_ends_is() -> None:
    better = 0
    for seed in BUSY:
        moment = busy_moment(seed)
        charges = to_the_end(moment)
        pool = _pool(moment, charges, 200, seed, 10)
        start = min(pool, key=lambda one: one.worth)
        better += any(_between(moment, charges, start, end).worth < start.worth * (1 - 1e-6) for end in pool)
    assert better


def test_a_walk_goes_through_a_worse_point_to_let_a_job_in() -> None:
    """Both jobs have two GPUs of four and a third waits; at the target everybody has one."""
    moment = build_instance([[9000, 8000, np.inf]] * 3, [0.0] * 3, nodes=(1, 0))
    charges = to_the_end(moment)
    start = Schedule(np.array([1, 1, POSTPONED]), np.array([0, 0, -1]), np.nan)
    stuck = improve(moment, charges, start)
    assert stuck.config.tolist() == start.config.tolist()
    target = Schedule(np.array([0, 0, 0]), np.array([0, 0, 0]), np.nan)
    found = _between(moment, charges, stuck, target)
    assert (found.config != POSTPONED).all()
    assert found.worth < stuck.worth


def test_who_is_where_the_walk_ends_stays() -> None:
    moment = busy_moment(0)
    charges = rolling(moment)
    start = searched(moment, charges, 20, 0)
    assert _between(moment, charges, start, start) is start


@given(moment=instances(), seed=st.integers(0, 3))
def test_a_seed_decides_everything(moment: Event, seed: int) -> None:
    charges = rolling(moment)
    first, again = (relink(moment, charges, 20, seed, 4) for _ in range(2))
    assert first.worth == again.worth
    assert first.config.tolist() == again.config.tolist()
    assert first.node.tolist() == again.node.tolist()


def test_one_of_a_pool_alone_is_what_search_finds() -> None:
    moment = busy_moment(1)
    charges = to_the_end(moment)
    alone = searched(moment, charges, 50, 3)
    assert relink(moment, charges, 50, 3, elites=1).config.tolist() == alone.config.tolist()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_nobody_and_no_nodes_are_no_problem(objective) -> None:  # type: ignore[no-untyped-def]
    empty = build_instance([], [])
    assert len(relink(empty, objective(empty)).config) == 0
    without = build_instance([[100, 90, 200]] * 2, [50, 60], nodes=(0, 0))
    found = relink(without, objective(without))
    assert found.config.tolist() == [POSTPONED] * 2
    assert found.worth == pytest.approx(objective(without).waits.sum())


def test_a_job_that_fits_nowhere_waits_and_the_others_run() -> None:
    moment = build_instance([[np.inf, np.inf, 100], [500, 400, np.inf]], [50, 50], nodes=(1, 0))
    assert (relink(moment, rolling(moment)).config == POSTPONED).tolist() == [True, False]
