"""Speed and watts under a power cap or a locked clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.synthetic_workloads import build_throttle, cap_curves, clock_curves
from wattline.errors import NotFitted
from wattline.measurement.devices import DEVICES
from wattline.models.power.curves import fit_caps, fit_clocks
from wattline.models.power.throttle import INSENSITIVE, Throttle

FREE = np.nan
SIZE = 32.0
EVERY_KIND = {
    "nothing": build_throttle(),
    "device": Throttle("a100", np.ones(1), np.full(1, np.nan)),
    "caps": build_throttle(caps=cap_curves(32.0, 64.0)),
    "clocks": build_throttle(clocks=clock_curves(32.0, 64.0)),
    "both": build_throttle(caps=cap_curves(32.0, 64.0), clocks=clock_curves(32.0, 64.0)),
}


def at(
    throttle: Throttle, cap_w: float = FREE, clock_mhz: float = FREE, batch: float = SIZE
) -> tuple[float, float]:
    rate, watts = throttle.at(np.array([batch]), np.array([cap_w]), np.array([clock_mhz]))
    return float(rate[0]), float(watts[0])


def test_nothing_measured_and_nothing_set_is_full_speed_at_the_watts_of_the_device() -> None:
    assert at(EVERY_KIND["device"]) == (1.0, DEVICES["a100"].busy_w)
    assert at(build_throttle()) == (1.0, 280.0)


def test_watts_of_a_free_gpu_go_with_the_logarithm_of_its_batch() -> None:
    throttle = Throttle("a100", np.array([8.0, 32.0]), np.array([200.0, 300.0]))
    watts = [at(throttle, batch=size)[1] for size in (4, 8, 16, 32, 64)]
    assert watts == pytest.approx([200, 200, 250, 300, 300])


def test_an_unmeasured_cap_slows_all_but_the_insensitive_part() -> None:
    rate, watts = at(build_throttle(), cap_w=150.0)
    idle_w = DEVICES["a100"].idle_w
    clock = ((150.0 - idle_w) / (280.0 - idle_w)) ** 0.5
    assert watts == 150.0
    assert rate == pytest.approx(1 / (INSENSITIVE + (1 - INSENSITIVE) / clock))


def test_an_unmeasured_clock_draws_power_with_its_square() -> None:
    rate, watts = at(build_throttle(), clock_mhz=DEVICES["a100"].max_clock_mhz / 2)
    idle_w = DEVICES["a100"].idle_w
    assert watts == pytest.approx(idle_w + (280.0 - idle_w) / 4)
    assert rate == pytest.approx(1 / (INSENSITIVE + 2 * (1 - INSENSITIVE)))


def test_unmeasured_caps_and_clocks_meet_on_one_curve() -> None:
    for clock_mhz in (500.0, 900.0, 1300.0):
        rate, watts = at(build_throttle(), clock_mhz=clock_mhz)
        assert at(build_throttle(), cap_w=watts) == pytest.approx((rate, watts), rel=1e-6)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_knob_with_room_to_spare_changes_nothing(kind: str) -> None:
    free = at(EVERY_KIND[kind])
    assert at(EVERY_KIND[kind], cap_w=790.0) == pytest.approx(free, rel=0.01)
    # For the other kinds a clock above the measured range is faster.
    if kind in ("nothing", "device", "caps"):
        assert at(EVERY_KIND[kind], clock_mhz=1410.0) == pytest.approx(free, rel=0.01)


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("batch", [32.0, 40.0, 50.0, 64.0])
def test_a_gpu_does_not_draw_more_than_its_cap_allows(kind: str, batch: float) -> None:
    for cap_w in (130.0, 160.0, 200.0, 250.0):
        _, watts = at(EVERY_KIND[kind], cap_w=cap_w, batch=batch)
        assert watts <= cap_w * 1.01


def test_a_cap_below_what_the_lowest_clock_draws_cannot_hold() -> None:
    throttle = EVERY_KIND["clocks"]
    _, least = at(throttle, clock_mhz=throttle.clocks.first / 2)  # type: ignore[union-attr]
    assert at(throttle, cap_w=0.5 * least)[1] == pytest.approx(least)


def test_measured_clocks_predict_caps_at_equal_watts() -> None:
    throttle = build_throttle(clocks=clock_curves())
    for clock_mhz in (650.0, 900.0, 1100.0, 1350.0):
        rate, watts = at(throttle, clock_mhz=clock_mhz)
        assert at(throttle, cap_w=watts) == pytest.approx((rate, watts), rel=0.005)


def test_measured_caps_predict_clocks_at_equal_speed() -> None:
    throttle = build_throttle(caps=cap_curves())
    for cap_w in (150.0, 200.0, 250.0):
        rate, watts = at(throttle, cap_w=cap_w)
        clock = (1 - INSENSITIVE) / (1 / rate - INSENSITIVE) * DEVICES["a100"].max_clock_mhz
        assert at(throttle, clock_mhz=clock) == pytest.approx((rate, watts), rel=0.01)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_tighter_of_two_knobs_applies(kind: str) -> None:
    throttle = EVERY_KIND[kind]
    assert at(throttle, cap_w=140.0, clock_mhz=1350.0) == pytest.approx(at(throttle, cap_w=140.0))
    assert at(throttle, cap_w=390.0, clock_mhz=700.0) == pytest.approx(at(throttle, clock_mhz=700.0))


ROWS = st.lists(
    st.tuples(
        st.floats(8, 128),
        st.one_of(st.just(FREE), st.floats(50, 800)),
        st.one_of(st.just(FREE), st.floats(300, 2800)),
    ),
    min_size=1,
    max_size=12,
)


def partly_metered() -> Throttle:
    """Build a throttle with measured watts at one batch size and unthrottled watts at others."""
    knob, size = np.tile([100.0, 200.0, 300.0, 400.0], 2), np.repeat([32.0, 64.0], 4)
    watts = np.where(size == 32.0, 0.9 * knob, np.nan)
    return build_throttle(caps=fit_caps(size, knob, np.sqrt(knob), watts, np.full(8, 0.01)))


def partly_metered_clocks() -> Throttle:
    knob, size = np.tile([600.0, 800.0, 1000.0, 1400.0], 2), np.repeat([32.0, 64.0], 4)
    watts = np.where(size == 32.0, 0.2 * knob, np.nan)
    return build_throttle(clocks=fit_clocks(size, knob, np.sqrt(knob), watts, np.full(8, 0.01)))


PARTLY = {"partly metered caps": partly_metered(), "partly metered clocks": partly_metered_clocks()}


@pytest.mark.parametrize("kind", [*EVERY_KIND, *PARTLY])
@given(rows=ROWS)
def test_a_prediction_does_not_depend_on_other_rows(kind: str, rows: list) -> None:
    throttle = {**EVERY_KIND, **PARTLY}[kind]
    batch, cap_w, clock_mhz = np.array(rows).T
    together = np.column_stack(throttle.at(batch, cap_w, clock_mhz))
    alone = [at(throttle, *row[1:], batch=row[0]) for row in rows]
    assert together == pytest.approx(np.array(alone), rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("kind", EVERY_KIND)
@given(batch=st.floats(8, 128), other=st.one_of(st.just(FREE), st.floats(80, 1400)), of_caps=st.booleans())
def test_more_of_a_knob_never_means_less_speed_or_fewer_watts(
    kind: str, batch: float, other: float, of_caps: bool
) -> None:
    knob = np.append(np.linspace(60, 800, 75) if of_caps else np.linspace(250, 2800, 75), np.nan)
    others = np.full(len(knob), other)
    rate, watts = EVERY_KIND[kind].at(
        np.full(len(knob), batch), *((knob, others) if of_caps else (others, knob))
    )
    # A clock above the measured range is faster than no clock.
    last = -1 if kind == "clocks" or (kind == "both" and not of_caps) else None
    for column in (rate[:last], watts[:last]):
        assert np.isfinite(column).all()
        assert (column > 0).all()
        assert (np.diff(column) >= -1e-3 * column[:-1]).all()


@pytest.mark.parametrize("kind", PARTLY)
def test_watts_are_predicted_for_metered_and_unmetered_batch_sizes(kind: str) -> None:
    for batch in (32.0, 40.0, 64.0):
        for knobs in ({"cap_w": 150.0}, {"clock_mhz": 900.0}, {}):
            rate, watts = at(PARTLY[kind], batch=batch, **knobs)
            assert 0 < rate <= 1.01
            assert 50 < watts < 400


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_scaled_watts_are_scaled_and_the_speed_stays(kind: str) -> None:
    rate, watts = at(EVERY_KIND[kind])
    assert at(EVERY_KIND[kind].scale(1.2)) == pytest.approx((rate, 1.2 * watts))


def test_an_unknown_gpu_without_measurements_is_refused() -> None:
    unknown = Throttle("tpu", np.ones(1), np.full(1, np.nan))
    rate, watts = at(unknown)
    assert rate == 1.0
    assert np.isnan(watts)
    with pytest.raises(
        NotFitted, match="cannot predict the effect of a power cap: no watts of tpu"
    ) as caught:
        at(unknown, cap_w=100.0)
    assert "measure watts" in caught.value.hint
    with pytest.raises(NotFitted, match="cannot predict the effect of a clock: no clock of tpu") as caught:
        at(unknown, clock_mhz=100.0)
    assert "clock_mhz" in caught.value.hint


def test_an_unknown_gpu_with_measured_watts_can_be_capped() -> None:
    metered = Throttle("tpu", np.ones(1), np.full(1, 200.0))
    rate, watts = at(metered, cap_w=100.0)
    assert watts == 100.0
    assert 0.3 < rate < 1.0
