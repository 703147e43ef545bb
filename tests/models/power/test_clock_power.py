"""Watts against clocks: linear up to a knee, steeper above it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.synthetic_workloads import max_relative_error
from wattline.models.power.clock_power import clock_watts, fit_clock_watts

MHZ = np.linspace(500.0, 1400.0, 19)
BETWEEN = np.linspace(520.0, 1380.0, 40)
LAWS = [
    (60.0, 0.10, 1010.0, 1.0e-3),
    (40.0, 0.15, 800.0, 5.0e-4),
    (10.0, 0.12, 1200.0, 2.0e-3),
    (0.0, 0.2, 650.0, 1.2e-3),
]


def test_watts_are_a_line_below_the_knee_and_climb_above_it() -> None:
    watts = clock_watts(np.array([500.0, 1000.0, 1500.0]), 50.0, 0.1, 1000.0, 1e-3)
    assert watts == pytest.approx([100.0, 150.0, 50 + 150 * 1.5**2])


@given(st.floats(0, 100), st.floats(0, 1), st.floats(0, 2000), st.floats(0, 5e-3))
def test_watts_never_fall_as_the_clock_rises(still: float, per_mhz: float, knee: float, rise: float) -> None:
    watts = clock_watts(np.linspace(0, 3000, 301), still, per_mhz, knee, rise)
    assert (np.diff(watts) >= 0).all()
    assert watts[0] == still


@pytest.mark.parametrize("law", LAWS)
def test_the_fit_recovers_a_law_with_its_knee(law: tuple[float, ...]) -> None:
    found = fit_clock_watts(MHZ, clock_watts(MHZ, *law), np.full(len(MHZ), 0.01))
    assert found[2] == pytest.approx(law[2], abs=10)
    assert found[3] == pytest.approx(law[3], rel=0.05)
    assert max_relative_error(clock_watts(BETWEEN, *found), clock_watts(BETWEEN, *law)) < 0.01


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("seed", range(3))
def test_the_fit_recovers_a_law_from_noisy_data(law: tuple[float, ...], seed: int) -> None:
    wrong = 1 + 0.01 * np.random.default_rng(seed).standard_normal(len(MHZ))
    found = fit_clock_watts(MHZ, clock_watts(MHZ, *law) * wrong, np.full(len(MHZ), 0.01))
    assert max_relative_error(clock_watts(BETWEEN, *found), clock_watts(BETWEEN, *law)) < 0.025


def test_three_clocks_give_a_line() -> None:
    mhz = np.array([500.0, 900.0, 1400.0])
    found = fit_clock_watts(mhz, np.array([100.0, 120.0, 300.0]), np.full(3, 0.01))
    assert found[3] == 0.0
    line = clock_watts(np.array([600.0, 700.0, 800.0]), *found)
    assert line[2] - line[1] == pytest.approx(line[1] - line[0])


@given(st.lists(st.floats(10, 500), min_size=1, max_size=9))
def test_any_measurements_give_watts_that_rise_with_the_clock(values: list[float]) -> None:
    mhz = 500.0 + 100.0 * np.arange(len(values))
    found = fit_clock_watts(mhz, np.array(values), np.full(len(values), 0.01))
    watts = clock_watts(np.linspace(250, 2600, 99), *found)
    assert np.isfinite(watts).all()
    assert (watts > 0).all()
    assert (np.diff(watts) >= -1e-9 * watts.max()).all()
