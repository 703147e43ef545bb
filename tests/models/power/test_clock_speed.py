"""Speed of a GPU against its clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.models.power.clock_speed import clock_rate, fit_clock_rate

CLOCKS = np.linspace(300.0, 1800.0, 7)


@pytest.mark.parametrize(("fixed", "top"), [(0.0, 4000.0), (0.3, 4000.0), (0.1, 1500.0)])
def test_clocks_that_were_left_out_are_predicted_over_a_wide_range(fixed: float, top: float) -> None:
    truth = (fixed, (1 - fixed) * 1800.0, top, 20.0)
    noise = np.random.default_rng(1).normal(1.0, 0.003, len(CLOCKS))
    found = fit_clock_rate(CLOCKS, clock_rate(CLOCKS, *truth) * noise, np.full(len(CLOCKS), 0.01))
    between = np.linspace(300.0, 1800.0, 61)
    assert np.abs(clock_rate(between, *found) / clock_rate(between, *truth) - 1).max() < 0.015


def test_few_clocks_give_no_ceiling() -> None:
    found = fit_clock_rate(np.array([600.0, 1200.0]), np.array([0.6, 1.0]), np.full(2, 0.01))
    assert clock_rate(np.array([600.0, 1200.0]), *found) == pytest.approx([0.6, 1.0], rel=0.02)
    assert clock_rate(np.array([900.0]), *found)[0] == pytest.approx(0.82, abs=0.05)


@given(st.lists(st.floats(0.01, 10.0), min_size=7, max_size=7))
def test_a_higher_clock_is_never_slower(rates: list[float]) -> None:
    found = fit_clock_rate(CLOCKS, np.array(rates), np.full(7, 0.01))
    fine = clock_rate(np.linspace(150.0, 1800.0, 200), *found)
    assert np.isfinite(fine).all()
    assert (fine > 0).all()
    assert (np.diff(fine) >= -1e-12).all()
