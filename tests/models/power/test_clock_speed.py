"""How fast a GPU is at a clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.models.power.clock_speed import fit_pace, pace

CLOCKS = np.linspace(300.0, 1800.0, 7)


@pytest.mark.parametrize(("fixed", "top"), [(0.0, 4000.0), (0.3, 4000.0), (0.1, 1500.0)])
def test_clocks_that_were_left_out_are_predicted_over_a_wide_range(fixed: float, top: float) -> None:
    truth = (fixed, (1 - fixed) * 1800.0, top, 20.0)
    noise = np.random.default_rng(1).normal(1.0, 0.003, len(CLOCKS))
    found = fit_pace(CLOCKS, pace(CLOCKS, *truth) * noise, np.full(len(CLOCKS), 0.01))
    between = np.linspace(300.0, 1800.0, 61)
    assert np.abs(pace(between, *found) / pace(between, *truth) - 1).max() < 0.015


def test_few_clocks_know_no_top() -> None:
    found = fit_pace(np.array([600.0, 1200.0]), np.array([0.6, 1.0]), np.full(2, 0.01))
    assert pace(np.array([600.0, 1200.0]), *found) == pytest.approx([0.6, 1.0], rel=0.02)
    assert pace(np.array([900.0]), *found)[0] == pytest.approx(0.82, abs=0.05)


@given(st.lists(st.floats(0.01, 10.0), min_size=7, max_size=7))
def test_whatever_was_measured_a_higher_clock_is_not_slower(rates: list[float]) -> None:
    found = fit_pace(CLOCKS, np.array(rates), np.full(7, 0.01))
    fine = pace(np.linspace(150.0, 1800.0, 200), *found)
    assert np.isfinite(fine).all()
    assert (fine > 0).all()
    assert (np.diff(fine) >= -1e-12).all()
