"""The eta at which a run uses as much energy, or takes as long, as another run."""

import math
from collections.abc import Callable
from dataclasses import fields

import pytest

from wattline.core.energy_knob import EnergyKnob
from wattline.errors import ConfigError
from wattline.reports import Report
from wattline.reports.knob_search import GRID, find_knob_value, search_log_scale

Law = Callable[[float], tuple[float, ...]]


def report(energy_j: float, jct_s: float, unfinished: int = 0) -> Report:
    """Return a report in which only these figures are set."""
    blank = {field.name: 0 for field in fields(Report)}
    metrics = {"energy_j": energy_j, "jct_mean_s": jct_s, "unfinished": unfinished}
    return Report(**{**blank, **metrics})  # type: ignore[arg-type]


class Runs:
    """A policy as two curves over eta; records the etas that were run."""

    def __init__(self, law: Law) -> None:
        self.law = law
        self.etas: list[float] = []

    def __call__(self, eta: float) -> Report:
        self.etas.append(eta)
        return report(*self.law(eta))  # type: ignore[arg-type]


def straight(eta: float) -> tuple[float, float]:
    return 100 + 100 * eta, 50 - 30 * eta


def bent(eta: float) -> tuple[float, float]:
    """Slow runs use more energy than some fast ones: 124 at 0, 100 at 0.4, 136 at 1."""
    return 100 + (150 if eta < 0.4 else 100) * (eta - 0.4) ** 2, 50 - 30 * eta


def test_the_same_energy_is_found_between_two_values_of_the_grid() -> None:
    found = find_knob_value(Runs(straight), 137, "energy_j")
    assert found.reached
    assert found.side == ""
    assert found.report.energy_j == pytest.approx(137, rel=0.01)
    assert found.value == pytest.approx(0.37, abs=0.02)


def test_the_same_jct_is_found_too() -> None:
    found = find_knob_value(Runs(straight), 30.5, "jct_mean_s")
    assert found.reached
    assert found.report.jct_mean_s == pytest.approx(30.5, rel=0.01)


def test_of_two_values_with_the_same_energy_the_faster_one_is_taken() -> None:
    found = find_knob_value(Runs(bent), 115, "energy_j")
    assert found.reached
    assert found.value > 0.4


def test_a_run_with_less_energy_is_taken_if_it_is_faster_than_all_with_the_same() -> None:
    def odd(eta: float) -> tuple[float, float]:
        return (140, 90) if eta < 0.05 else straight(eta / 4)

    found = find_knob_value(Runs(odd), 140, "energy_j")
    assert (found.value, found.reached, found.side) == (1.0, False, "under")


def test_of_several_with_the_same_jct_the_cheapest_is_taken() -> None:
    found = find_knob_value(Runs(lambda eta: (200 - 50 * eta, 20 + 100 * abs(eta - 0.5))), 40, "jct_mean_s")
    assert found.reached
    assert found.value == pytest.approx(0.7, abs=0.01)


def test_below_the_cheapest_the_cheapest_is_compared() -> None:
    found = find_knob_value(Runs(bent), 80, "energy_j")
    assert (found.value, found.reached, found.side) == (0.4, False, "below")


def test_above_the_dearest_the_fastest_is_compared() -> None:
    found = find_knob_value(Runs(straight), 300, "energy_j")
    assert (found.value, found.reached, found.side) == (1.0, False, "above")
    assert found.report.energy_j < 300


def test_slower_than_the_slowest_the_cheapest_is_compared() -> None:
    found = find_knob_value(Runs(bent), 99, "jct_mean_s")
    assert (found.value, found.reached, found.side) == (0.4, False, "above")


def test_faster_than_the_fastest_the_fastest_is_compared() -> None:
    found = find_knob_value(Runs(bent), 5, "jct_mean_s")
    assert (found.value, found.reached, found.side) == (1.0, False, "below")


def test_where_energy_jumps_over_the_target_the_run_under_it_is_taken() -> None:
    runs = Runs(lambda eta: (100.0 if eta < 0.55 else 200.0, 50 - 30 * eta))
    found = find_knob_value(runs, 150, "energy_j", max_bisections=5)
    assert not found.reached
    assert found.side == "under"
    assert 0.5 <= found.value < 0.55
    assert len(runs.etas) == len(GRID) + 5


def test_no_value_is_run_twice_and_none_where_the_grid_is_near_enough() -> None:
    runs = Runs(straight)
    find_knob_value(runs, 137, "energy_j")
    assert len(set(runs.etas)) == len(runs.etas)
    runs = Runs(straight)
    find_knob_value(runs, 140.5, "energy_j")
    assert runs.etas == list(GRID)


def test_runs_in_which_nothing_finished_do_not_count() -> None:
    found = find_knob_value(
        Runs(lambda eta: (math.nan, math.nan) if eta < 0.5 else straight(eta)), 140, "energy_j"
    )
    assert (found.value, found.side) == (0.5, "below")
    with pytest.raises(ConfigError, match="some job to finish"):
        find_knob_value(Runs(lambda eta: (100.0, math.nan)), 140, "energy_j")


def test_runs_that_leave_jobs_which_others_finish_do_not_count() -> None:
    found = find_knob_value(
        Runs(lambda eta: (90, 1, 3) if eta < 0.25 else (*straight(eta), 2)), 137, "energy_j"
    )
    assert found.value == pytest.approx(0.37, abs=0.02)


@pytest.mark.parametrize("target", [math.nan, 0.0, -1.0, math.inf])
def test_a_target_that_is_not_finite_or_not_above_0_is_refused(target: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        find_knob_value(Runs(straight), target, "energy_j")


PRICE = EnergyKnob("energy_price", 0.0, math.inf, "log", start=1e-3)


def saving(price: float) -> tuple[float, float]:
    """Return an energy that falls from 200 to 100 around a price of 0.02, with a JCT that grows."""
    part = price / (price + 0.02)
    return 200 - 100 * part, 20 + 30 * part


@pytest.mark.parametrize("target", [198.5, 190.0, 150.0, 110.0, 102.0])
def test_a_log_scale_is_searched_on_both_sides_of_its_start(target: float) -> None:
    runs = Runs(saving)
    found = search_log_scale(runs, target, "energy_j", PRICE)
    assert found.reached
    assert found.report.energy_j == pytest.approx(target, rel=0.01)
    assert len(set(runs.etas)) == len(runs.etas) < 25


def test_a_log_scale_is_searched_for_the_same_jct_too() -> None:
    found = search_log_scale(Runs(saving), 35.0, "jct_mean_s", PRICE)
    assert found.reached
    assert found.value == pytest.approx(0.02, rel=0.1)


def test_a_log_search_ends_where_the_knob_changes_nothing_more() -> None:
    runs = Runs(saving)
    found = search_log_scale(runs, 90.0, "energy_j", PRICE)
    assert (found.reached, found.side) == (False, "below")
    assert found.report.energy_j == pytest.approx(100, rel=0.01)
    assert len(runs.etas) < 15
    found = search_log_scale(Runs(saving), 300.0, "energy_j", PRICE)
    assert (found.value, found.reached, found.side) == (0.0, False, "above")


def test_a_match_is_preferred_to_a_slightly_better_run_under_the_target() -> None:
    def flat(eta: float) -> tuple[float, float]:
        return 100 + 100 * eta, 40 + eta

    found = find_knob_value(Runs(flat), 150, "energy_j")
    assert found.reached
    assert found.report.energy_j == pytest.approx(150, rel=0.01)


def test_where_energy_jumps_values_around_the_jump_are_tried_too() -> None:
    def jumpy(price: float) -> tuple[float, float]:
        return (200.0 if price < 0.01 else 100.0 if price < 0.0125 else 150.0 if price < 0.02 else 90.0), 20.0

    found = search_log_scale(Runs(jumpy), 150.0, "energy_j", PRICE)
    assert found.reached
    assert 0.0125 <= found.value < 0.02
