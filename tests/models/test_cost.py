"""Cost of energy, time and tardiness."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.errors import ConfigError
from wattline.models.cost import energy_cost, energy_time_cost, sample_cost, tardiness_cost

POSITIVE = st.floats(1e-3, 1e6)


@given(POSITIVE, POSITIVE, POSITIVE)
def test_eta_one_is_energy_and_eta_zero_is_time_at_full_power(
    energy_j: float, time_s: float, max_w: float
) -> None:
    energy, time = np.array([energy_j]), np.array([time_s])
    assert energy_time_cost(energy, time, eta=1.0, max_w=max_w) == pytest.approx(energy)
    assert energy_time_cost(energy, time, eta=0.0, max_w=max_w) == pytest.approx(max_w * time)


@given(POSITIVE, POSITIVE, st.floats(0, 1))
def test_the_cost_of_a_sample_is_that_of_a_job_over_its_samples(
    samples_s: float, watts: float, eta: float
) -> None:
    seconds = 100.0 / samples_s
    whole = energy_time_cost(np.array([watts * seconds]), np.array([seconds]), eta=eta, max_w=400.0)
    each = sample_cost(np.array([samples_s]), np.array([watts]), eta=eta, max_w=400.0)
    assert whole / 100.0 == pytest.approx(each)


def test_which_cap_is_cheapest_depends_on_what_time_is_worth() -> None:
    samples_s, watts = np.array([6.0, 9.0, 10.0]), np.array([100.0, 200.0, 300.0])
    best = [int(np.argmin(sample_cost(samples_s, watts, eta=eta, max_w=300.0))) for eta in (0.0, 0.5, 1.0)]
    assert best == [2, 1, 0]


@pytest.mark.parametrize("eta", [-0.1, 1.1, math.nan, math.inf])
def test_an_eta_that_is_no_share_is_refused(eta: float) -> None:
    one = np.ones(1)
    for cost in (energy_time_cost, sample_cost):
        with pytest.raises(ConfigError, match=f"eta must be between 0 and 1, got {eta}"):
            cost(one, one, eta=eta, max_w=300.0)


@pytest.mark.parametrize("max_w", [0.0, -1.0, math.nan, math.inf])
def test_a_largest_power_that_cannot_be_is_refused(max_w: float) -> None:
    one = np.ones(1)
    for cost in (energy_time_cost, sample_cost):
        with pytest.raises(ConfigError, match=f"max_w must be above 0 and finite, got {max_w}"):
            cost(one, one, eta=0.5, max_w=max_w)


def test_being_late_costs_by_the_second_and_being_early_nothing() -> None:
    finish, deadline = np.array([50.0, 100.0, 160.0, 1e9]), np.array([100.0, 100.0, 100.0, np.inf])
    assert tardiness_cost(finish, deadline, np.array([2.0, 2.0, 2.0, 2.0])).tolist() == [0, 0, 120, 0]
    assert tardiness_cost(finish, deadline, 0.5).tolist() == [0, 0, 30, 0]  # type: ignore[arg-type]


def test_a_kilowatt_hour_costs_its_price_with_what_cooling_adds() -> None:
    energy_j = np.array([3.6e6, 0.0])
    assert energy_cost(energy_j, price_kwh=0.3).tolist() == [0.3, 0.0]
    assert energy_cost(energy_j, price_kwh=0.3, pue=1.5) == pytest.approx([0.45, 0.0])


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"price_kwh": -0.1}, "price_kwh must be at least 0, got -0.1"),
        ({"price_kwh": math.nan}, "price_kwh must be at least 0, got nan"),
        ({"price_kwh": 0.3, "pue": 0.9}, "pue must be at least 1 and finite, got 0.9"),
        ({"price_kwh": 0.3, "pue": math.inf}, "pue must be at least 1 and finite, got inf"),
    ],
)
def test_prices_that_make_no_sense_are_refused(knobs: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        energy_cost(np.ones(1), **knobs)
