"""Tables of speed and watts against one knob."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.synthetic_workloads import CAPS_W, CLOCKS_MHZ, cap_curves, clock_curves, max_relative_error
from wattline.models.power.clock_power import clock_watts
from wattline.models.power.clock_speed import clock_rate
from wattline.models.power.curves import Curves, fit_caps, fit_clocks, locate_in_log_intervals
from wattline.models.power.soft_ramp import soft_ramp


def at(curves: Curves, batch: float, knob: float) -> tuple[float, float]:
    rate, watts = curves.at(np.array([batch]), np.array([knob]))
    return float(rate[0]), float(watts[0])


def test_between_two_sizes_the_logarithm_decides() -> None:
    left, share = locate_in_log_intervals(
        np.array([8.0, 32.0, 64.0]), np.array([1.0, 8.0, 16.0, 32.0, 45.25, 64.0, 999.0])
    )
    assert left.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert share == pytest.approx([0, 0, 0.5, 0, 0.5, 1, 1], abs=1e-3)


def test_one_batch_size_applies_to_all() -> None:
    left, share = locate_in_log_intervals(np.array([8.0]), np.array([1.0, 8.0, 99.0]))
    assert (left.tolist(), share.tolist()) == ([0, 0, 0], [0, 0, 0])


@pytest.mark.parametrize("make", [cap_curves, clock_curves])
def test_a_table_agrees_with_its_laws(make: type[Curves]) -> None:
    curves = make(32.0, 64.0)  # type: ignore[call-arg, arg-type]
    rate_law, law = (soft_ramp, soft_ramp) if make is cap_curves else (clock_rate, clock_watts)
    knobs = np.linspace(curves.first, curves.last, 33)
    for row, size in enumerate((32.0, 64.0)):
        rate, watts = curves.at(np.full(33, size), knobs)
        assert max_relative_error(rate, curves.bend[row] * rate_law(knobs, *curves.rate_law[row])) < 2e-3
        assert max_relative_error(watts, law(knobs, *curves.watts_law[row])) < 2e-3


def test_an_unset_knob_is_unlimited() -> None:
    curves = cap_curves(32.0, 64.0)
    for size in (16.0, 32.0, 45.0, 64.0):
        assert at(curves, size, np.nan) == at(curves, size, curves.last)
    assert at(curves, 32.0, np.nan)[0] == pytest.approx(1.0)


def test_a_cap_that_was_not_measured_is_not_faster_than_no_cap() -> None:
    cap_w = np.array([100.0, 150.0, 200.0, 250.0])
    curves = fit_caps(np.full(4, 8.0), cap_w, cap_w / 10, 0.9 * cap_w, np.full(4, 0.01))
    (free, free_w), (capped, capped_w) = at(curves, 8.0, np.nan), at(curves, 8.0, 500.0)
    assert capped <= free * 1.001
    assert capped_w <= free_w * 1.001


def test_beyond_twice_the_measured_range_nothing_changes() -> None:
    curves = clock_curves()
    assert at(curves, 32.0, 2 * CLOCKS_MHZ[-1]) == at(curves, 32.0, 9 * CLOCKS_MHZ[-1])
    assert at(curves, 32.0, CLOCKS_MHZ[0] / 2) == at(curves, 32.0, CLOCKS_MHZ[0] / 9)


def test_between_two_batch_sizes_lies_their_mean() -> None:
    curves = cap_curves(32.0, 128.0)
    (_, small), (_, middle), (_, large) = (at(curves, size, 300.0) for size in (32.0, 64.0, 128.0))
    assert small < large
    assert middle == pytest.approx((small + large) / 2)


@given(st.floats(32, 128), st.floats(120, 290))
def test_against_watts_the_limit_holds_and_the_speed_is_that_of_the_clock(batch: float, watts: float) -> None:
    curves = clock_curves(32.0, 128.0)
    rate, drawn = curves.against_watts().at(np.array([batch]), np.array([watts]))
    assert drawn <= watts * (1 + 1e-9)
    knobs = np.linspace(curves.knob[0], curves.last, 2000)
    rates, draws = curves.at(np.full(2000, batch), knobs)
    assert rate == pytest.approx([np.interp(watts, draws, rates)], rel=0.02)


def test_against_rate_the_watts_are_those_of_the_equally_fast_setting() -> None:
    curves = cap_curves()
    knob = np.linspace(100.0, 1000.0, 257)
    other = curves.against_rate(knob, knob / 1000.0, np.full(257, 50.0))
    for at in (500.0, 700.0, 900.0):
        rate, watts = other.at(np.array([32.0]), np.array([at]))
        assert rate == pytest.approx([at / 1000.0], rel=0.01)
        caps_w = np.linspace(curves.knob[0], curves.knob[-1], 3000)
        rates, draws = curves.at(np.full(3000, 32.0), caps_w)
        assert watts == pytest.approx([np.interp(at / 1000.0, rates, draws)], rel=0.02)


def test_rates_are_corrected_per_batch_size() -> None:
    curves = cap_curves(32.0, 64.0)
    bent = curves.scale_rates(np.array([1.0, 0.9]))
    assert bent.rate[0] == pytest.approx(curves.rate[0])
    assert bent.rate[1] == pytest.approx(0.9 * curves.rate[1])
    assert bent.watts == pytest.approx(curves.watts)
    assert bent.bend[1] * soft_ramp(bent.knob, *bent.rate_law[1]) == pytest.approx(bent.rate[1])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("make", "fit", "knobs"), [(cap_curves, fit_caps, CAPS_W), (clock_curves, fit_clocks, CLOCKS_MHZ)]
)
def test_fitted_curves_recover_the_truth_from_noisy_data(make, fit, knobs, seed: int) -> None:  # type: ignore[no-untyped-def]
    true = make(32.0, 64.0)
    batch, knob = (a.reshape(-1) for a in np.meshgrid(true.batch, knobs, indexing="ij"))
    wrong = 1 + 0.01 * np.random.default_rng(seed).standard_normal((2, len(knob)))
    rate, watts = true.at(batch, knob) * wrong
    found = fit(batch, knob, 500.0 * rate, watts, np.full(len(knob), 0.01))
    asked = np.linspace(knobs[0], knobs[-1], 77)
    for size in (32.0, 45.0, 64.0):
        was, draws = true.at(np.full(77, size), asked)
        rate, watts = found.at(np.full(77, size), asked)
        for now, then in ((rate, was), (watts, draws)):
            assert max_relative_error(now, then) < 0.05
            assert np.mean(np.abs(now / then - 1)) < 0.02


@pytest.mark.parametrize("fit", [fit_caps, fit_clocks])
def test_unmeasured_watts_stay_unknown(fit) -> None:  # type: ignore[no-untyped-def]
    knob = np.array([100.0, 200.0, 300.0, 400.0])
    speed = np.sqrt(knob / 400) if fit is fit_caps else 1.0 / (0.4 + 0.6 * 400 / knob)
    found = fit(np.full(4, 8.0), knob, 7 * speed, np.full(4, np.nan), np.full(4, 0.01))
    rate, watts = found.at(np.full(4, 8.0), knob)
    assert rate == pytest.approx(speed, rel=0.05)
    assert np.isnan(watts).all()


@pytest.mark.parametrize("fit", [fit_caps, fit_clocks])
def test_a_batch_size_without_watts_draws_what_the_nearest_does(fit) -> None:  # type: ignore[no-untyped-def]
    knob = np.tile([100.0, 200.0, 300.0, 400.0], 2)
    batch = np.repeat([8.0, 16.0], 4)
    watts = np.where(batch == 8.0, knob * 0.9, np.nan)
    found = fit(batch, knob, np.sqrt(knob), watts, np.full(8, 0.01))
    assert found.at(batch[:4], knob[:4])[1] == pytest.approx(0.9 * knob[:4], rel=0.03)
    assert found.at(batch[4:], knob[4:])[1] == pytest.approx(0.9 * knob[4:], rel=0.03)


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(20, 500)), min_size=2, max_size=7), st.booleans())
def test_whatever_was_measured_more_of_a_knob_never_gives_less(rows: list, of_caps: bool) -> None:
    samples_s, watts = np.array(rows).T
    knob = 100.0 + 40.0 * np.arange(len(rows))
    fit = fit_caps if of_caps else fit_clocks
    found = fit(np.full(len(rows), 8.0), knob, samples_s, watts, np.full(len(rows), 0.01))
    asked = np.linspace(40.0, 2.5 * knob[-1], 111)
    rate, draws = found.at(np.full(111, 8.0), asked)
    for column in (rate, draws):
        assert np.isfinite(column).all()
        assert (column > 0).all()
        assert (np.diff(column) >= -1e-9 * column.max()).all()
