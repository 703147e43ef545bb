"""The Gittins index, against its definition and against distributions with a known index."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.policy.gittins_index import compute_best_index, compute_index

SERVICES = st.lists(st.integers(1, 400).map(float), min_size=1, max_size=25).map(sorted)


def index_by_definition(attained: float, delta: float, ended: list[float]) -> float:
    """Return P(S - a <= delta | S > a) / E[min(S - a, delta) | S > a], job by job."""
    left = [service - attained for service in ended if service > attained]
    if not left:
        return 0.0
    return sum(one <= delta for one in left) / sum(min(one, delta) for one in left)


@given(ended=SERVICES, attained=st.floats(0, 450), delta=st.one_of(st.floats(0.125, 500), st.just(math.inf)))
def test_the_index_at_one_delta_is_that_of_its_definition(
    ended: list[float], attained: float, delta: float
) -> None:
    index = compute_index(np.array([attained]), np.array([delta]), np.array(ended))
    # Beyond the last value of the sample, delta is rounded when it is added.
    assert index[0] == pytest.approx(index_by_definition(attained, delta, ended), rel=1e-6)


@given(ended=SERVICES, attained=st.integers(0, 450), least=st.integers(1, 100))
def test_the_best_index_is_the_largest_over_every_delta(
    ended: list[float], attained: int, least: int
) -> None:
    best = compute_best_index(np.array([float(attained)]), np.array([float(least)]), np.array(ended))
    tried = [index_by_definition(attained, delta / 2, ended) for delta in range(2 * least, 1000)]
    assert best[0] == pytest.approx(max(tried), rel=1e-9)


def test_jobs_of_equal_service_are_ranked_by_what_is_left() -> None:
    attained = np.array([0.0, 50.0, 99.0, 100.0])
    ended = np.full(20, 100.0)
    expected = [1 / 100, 1 / 50, 1 / 1, 0.0]  # 1 / (D - a); nothing is known beyond D
    assert compute_best_index(attained, np.full(4, 1.0), ended) == pytest.approx(expected)
    assert compute_index(attained, np.full(4, np.inf), ended) == pytest.approx(expected)


def test_an_exponential_service_has_a_constant_index() -> None:
    mean = 5000.0
    draw = np.sort(np.random.default_rng(1).exponential(mean, 200_000))
    attained = np.array([0.0, 1000.0, 5000.0, 10_000.0])
    assert compute_best_index(attained, np.full(4, 500.0), draw) == pytest.approx(1 / mean, rel=0.05)
    for delta in (500.0, 5000.0, math.inf):
        assert compute_index(attained, np.full(4, delta), draw) == pytest.approx(1 / mean, rel=0.05)


def test_a_uniform_service_has_twice_one_over_what_is_left_at_most() -> None:
    ended = np.arange(1, 100_001) / 100_000  # uniform on (0, 1]: the hazard rises, so delta reaches the end
    attained = np.array([0.0, 0.25, 0.5, 0.9])
    assert compute_best_index(attained, np.full(4, 0.01), ended) == pytest.approx(
        2 / (1 - attained), rel=1e-3
    )


def test_a_service_of_two_values_has_the_index_of_the_better_delta() -> None:
    # Nine in ten take 10, one takes 1000: at first delta = 10, later only the long one is left.
    ended = np.array([10.0] * 9 + [1000.0])
    index = compute_best_index(np.array([0.0, 5.0, 10.0, 500.0]), np.full(4, 1.0), ended)
    assert index == pytest.approx([9 / 100, 9 / 50, 1 / 990, 1 / 500])


def test_a_mixture_of_short_and_long_jobs_is_served_by_least_attained_service() -> None:
    draw = np.random.default_rng(2)
    scale = np.where(draw.random(400_000) < 0.5, 100.0, 10_000.0)  # hyper-exponential: the hazard falls
    ended = np.sort(draw.exponential(scale))
    index = compute_best_index(np.array([0.0, 100.0, 200.0, 400.0]), np.full(4, 20.0), ended)
    assert (np.diff(index) < 0).all()
