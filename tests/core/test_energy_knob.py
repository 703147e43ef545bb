"""The declared range of an energy knob."""

import math

import pytest

from wattline.core.energy_knob import EnergyKnob
from wattline.errors import ConfigError

PRICE = EnergyKnob("energy_price", 0.0, math.inf, "log", start=1e-3, unit="s/J")


def test_a_linear_grid_goes_from_end_to_end_in_tenths() -> None:
    assert EnergyKnob("eta", 1.0, 0.0).grid == tuple(step / 10 for step in range(11))


def test_a_log_grid_has_its_start_and_zero() -> None:
    grid = PRICE.grid
    assert grid[0] == 0.0
    assert 1e-3 in grid
    assert list(grid) == sorted(grid)
    assert grid[-1] > 1.0


def test_a_log_grid_stays_within_a_finite_end() -> None:
    assert max(EnergyKnob("x", 0.0, 0.1, "log", start=1e-3).grid) <= 0.1


def test_the_middle_is_arithmetic_or_geometric() -> None:
    assert EnergyKnob("eta", 1.0, 0.0).find_middle(0.2, 0.4) == pytest.approx(0.3)
    assert PRICE.find_middle(1e-4, 1e-2) == pytest.approx(1e-3)
    assert 0 < PRICE.find_middle(0.0, 1e-2) < 1e-2


@pytest.mark.parametrize(
    ("knob", "message"),
    [
        (("eta", 1.0, 1.0), "both 1"),
        (("eta", 0.0, math.inf), "two finite ends"),
        (("eta", 0.0, math.inf, "log"), "start above 0"),
        (("eta", 1.0, math.inf, "log", 2.0), "an end at 0"),
    ],
)
def test_impossible_ranges_are_refused(knob: tuple, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match=message):
        EnergyKnob(*knob)
