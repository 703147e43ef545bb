"""Soft ramp from a floor to a ceiling, and its fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.synthetic_workloads import max_relative_error
from wattline.models.power.soft_ramp import fit_nonnegative_line, fit_soft_ramp, soft_ramp

X = np.linspace(100.0, 400.0, 13)
BETWEEN = np.linspace(110.0, 390.0, 40)
LAWS = [
    (0.4, 0.003, 120.0, 300.0, 20.0),  # a floor, a rise, a ceiling
    (0.2, 0.002, 50.0, 390.0, 30.0),  # rises all the way
    (1.0, 0.002, 40.0, 180.0, 60.0),  # reaches its ceiling early
    (0.0, 0.005, 10.0, 260.0, 15.0),
]


def equally(noise: float = 0.01) -> np.ndarray:
    return np.full(len(X), noise)


def test_a_sharp_ramp_is_flat_then_straight_then_flat() -> None:
    y = soft_ramp(np.array([0.0, 100.0, 150.0, 200.0, 300.0]), 2.0, 0.1, 100.0, 200.0, 1e-9)
    assert y == pytest.approx([2.0, 2.0, 7.0, 12.0, 12.0])


def test_a_soft_ramp_cuts_its_corners() -> None:
    y = soft_ramp(np.array([100.0, 150.0, 200.0]), 2.0, 0.1, 100.0, 200.0, 20.0)
    assert 2.0 < y[0] < 3.5
    assert y[1] == pytest.approx(7.0)
    assert 10.5 < y[2] < 12.0


@given(
    st.floats(0, 100),
    st.floats(0, 10),
    st.floats(-500, 500),
    st.floats(0, 500),
    st.floats(1e-3, 200),
)
def test_a_ramp_never_falls(low: float, slope: float, start: float, rise: float, soft: float) -> None:
    y = soft_ramp(np.linspace(-1000, 1000, 201), low, slope, start, start + rise, soft)
    assert (np.diff(y) >= -1e-9 * (1 + y[:-1])).all()
    assert y[0] >= low - 1e-9 * (1 + low)
    assert y[-1] <= low + slope * rise + 1e-9 * (1 + low + slope * rise)


@pytest.mark.parametrize("law", LAWS)
def test_the_fit_recovers_a_ramp(law: tuple[float, ...]) -> None:
    found = fit_soft_ramp(X, soft_ramp(X, *law), equally())
    assert max_relative_error(soft_ramp(BETWEEN, *found), soft_ramp(BETWEEN, *law)) < 0.02


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("seed", range(3))
def test_the_fit_recovers_a_ramp_from_noisy_data(law: tuple[float, ...], seed: int) -> None:
    wrong = 1 + 0.01 * np.random.default_rng(seed).standard_normal(len(X))
    found = fit_soft_ramp(X, soft_ramp(X, *law) * wrong, equally())
    assert max_relative_error(soft_ramp(BETWEEN, *found), soft_ramp(BETWEEN, *law)) < 0.03


def test_two_values_give_the_line_between_them_and_nothing_beyond() -> None:
    law = fit_soft_ramp(np.array([100.0, 200.0]), np.array([10.0, 20.0]), np.full(2, 0.01))
    assert soft_ramp(np.array([100.0, 125.0, 150.0, 200.0]), *law) == pytest.approx(
        [10, 12.5, 15, 20], rel=0.02
    )
    assert soft_ramp(np.array([1000.0]), *law)[0] < 20.5


def test_one_value_gives_the_mean_that_its_noise_allows() -> None:
    x, y = np.full(2, 250.0), np.array([10.0, 20.0])
    assert soft_ramp(np.array([50.0, 900.0]), *fit_soft_ramp(x, y, np.array([0.001, 0.5]))) == pytest.approx(
        [10, 10], rel=0.01
    )
    even = soft_ramp(np.array([50.0, 900.0]), *fit_soft_ramp(x, y, np.array([0.02, 0.01])))
    assert even == pytest.approx([15, 15])


def test_falling_data_gives_a_flat_ramp() -> None:
    y = np.linspace(20.0, 10.0, len(X))
    found = soft_ramp(X, *fit_soft_ramp(X, y, equally()))
    assert np.ptp(found) < 1e-9
    assert 10 < found[0] < 20


def test_a_noisy_measurement_counts_for_less() -> None:
    law = LAWS[0]
    y = soft_ramp(X, *law)
    y[6] *= 1.5
    noise = equally()
    noise[6] = 1.0
    assert (
        max_relative_error(soft_ramp(BETWEEN, *fit_soft_ramp(X, y, noise)), soft_ramp(BETWEEN, *law)) < 0.02
    )


@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_any_measurements_give_a_rising_positive_ramp_in_any_order(
    values: list[float], order: object
) -> None:
    x, y = np.arange(len(values)) * 30.0 + 100.0, np.array(values)
    law = fit_soft_ramp(x, y, np.full(len(y), 0.01))
    over = soft_ramp(np.linspace(x[0] / 2, 2 * x[-1], 99), *law)
    assert np.isfinite(law).all()
    assert (over >= 0).all()
    assert (np.diff(over) >= -1e-9 * over.max()).all()
    assert over[-1] > 0
    shuffled = list(range(len(y)))
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    again = fit_soft_ramp(x[shuffled], y[shuffled], np.full(len(y), 0.01))
    assert soft_ramp(x, *again) == pytest.approx(soft_ramp(x, *law), rel=1e-6, abs=1e-9 * over.max())


def test_the_best_line_is_found_among_those_that_are_allowed() -> None:
    basis = np.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    low, slope, error = fit_nonnegative_line(basis, np.array([1.0, 3.0, 5.0]), np.full(3, 0.1))
    assert (low[0], slope[0], error[0]) == pytest.approx((1.0, 2.0, 0.0), abs=1e-9)
    assert slope[1] == 0.0  # it would have to fall
    assert slope[2] == 0.0  # a flat basis has no information
    assert low[1] == pytest.approx(low[2])
    assert error[1] > 1.0


def test_a_line_never_starts_below_zero() -> None:
    low, slope, _ = fit_nonnegative_line(np.array([[1.0, 2.0]]), np.array([1.0, 3.0]), np.full(2, 0.1))
    assert low[0] == 0.0
    assert 1.0 < slope[0] < 1.5
