"""Predictions and updates of one workload."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.synthetic_workloads import (
    ARRAY,
    DEMAND,
    SPEED,
    build_throttle,
    build_workload,
    cap_curves,
    clock_curves,
    max_relative_error,
)
from wattline.errors import OutOfRange
from wattline.measurement.settings import Settings
from wattline.models.power.throttle import Throttle
from wattline.models.speed import Speed
from wattline.models.workload import Workload

FREE = np.nan
RICH = build_workload(
    throttle=build_throttle(caps=cap_curves(32.0, 64.0), clocks=clock_curves(32.0, 64.0)),
    demand=DEMAND,
    array=ARRAY,
)
RANGES = {
    "gpus": (1.0, 8.0),
    "batch": (16.0, 64.0),
    "cap_w": (100.0, 400.0),
    "clock_mhz": (600.0, 1400.0),
    "cpus": (1.0, 16.0),
    "mem_gib": (20.0, 200.0),
    "fuse": (1.0, 4.0),
}


def ask(workload: Workload, **knobs: float) -> tuple[float, float]:
    samples_s, watts = workload.predict(Settings.of(**knobs))
    return float(samples_s[0]), float(watts[0])


def test_a_prediction_is_the_batch_over_the_step_and_the_share_that_computes() -> None:
    workload = build_workload(speed=Speed(0.02, 0.001, 0.0, 0.028))
    assert ask(workload, batch=32) == pytest.approx((32 / 0.052, 280.0))
    samples_s, watts = ask(workload, gpus=2, batch=64)
    assert samples_s == pytest.approx(64 / 0.080)
    assert watts == pytest.approx(2 * 280 * (0.5 + 0.5 * 0.052 / 0.080))


def test_a_fused_array_trains_all_its_members() -> None:
    alone, four = (ask(replace(RICH, demand=type(DEMAND)()), batch=32, fuse=fuse)[0] for fuse in (1, 4))
    assert four / alone == pytest.approx(4 / (1 + 0.4 * 3))


def test_a_slow_loader_limits_and_the_gpu_draws_less_while_it_waits() -> None:
    free, free_w = ask(RICH, batch=32)
    slow, slow_w = ask(RICH, batch=32, cpus=1)
    assert slow == pytest.approx(1 / DEMAND.core_s)
    assert slow_w == pytest.approx(free_w * (0.5 + 0.5 * slow / free))


def test_cores_and_memory_of_a_job_are_shared_by_its_gpus() -> None:
    one = ask(RICH, batch=32, cpus=2, mem_gib=50)[0]
    assert ask(RICH, gpus=4, batch=128, cpus=8, mem_gib=200)[0] == pytest.approx(4 * one)


def test_without_a_batch_each_gpu_has_the_usual_one() -> None:
    assert ask(RICH) == ask(RICH, batch=32)
    assert ask(RICH, gpus=2) == ask(RICH, gpus=2, batch=64)
    assert ask(replace(RICH, usual_batch=FREE), gpus=4) == ask(RICH, gpus=4, batch=4)


KNOBS = {
    "cap_w": st.one_of(st.just(FREE), st.floats(60, 800)),
    "clock_mhz": st.one_of(st.just(FREE), st.floats(300, 2800)),
    "cpus": st.one_of(st.just(FREE), st.floats(0.5, 64)),
    "mem_gib": st.one_of(st.just(FREE), st.floats(0, 500)),
    "fuse": st.integers(1, 8).map(float),
    "batch": st.floats(8, 1024),
}
UPWARDS = {
    "cap_w": np.linspace(60, 800, 40),
    "clock_mhz": np.linspace(300, 2800, 40),
    "cpus": np.linspace(0.5, 128, 40),
    "mem_gib": np.linspace(0, 600, 40),
}


@pytest.mark.parametrize("knob", UPWARDS)
@given(knobs=st.fixed_dictionaries({**KNOBS, "gpus": st.sampled_from((1.0, 2.0, 8.0))}))
def test_more_of_a_knob_never_makes_a_job_slower(knob: str, knobs: dict[str, float]) -> None:
    samples_s, watts = RICH.extrapolate(Settings.of(**{**knobs, knob: UPWARDS[knob]}))
    assert np.isfinite(samples_s).all()
    assert np.isfinite(watts).all()
    assert (samples_s > 0).all()
    assert (watts > 0).all()
    assert (np.diff(samples_s) >= -1e-9 * samples_s[:-1]).all()


@pytest.mark.parametrize("knob", ["cap_w", "clock_mhz"])
@given(batch=st.floats(8, 256), fuse=st.integers(1, 8))
def test_a_higher_cap_or_clock_never_means_fewer_watts(knob: str, batch: float, fuse: int) -> None:
    _, watts = RICH.extrapolate(Settings.of(batch=batch, fuse=fuse, **{knob: UPWARDS[knob]}))
    assert (np.diff(watts) >= -1e-9 * watts[:-1]).all()


@given(st.floats(1, 64), st.sampled_from((1.0, 2.0)))
def test_more_gpus_never_make_the_computing_of_a_step_longer(batch: float, fuse: float) -> None:
    gpus = np.arange(1.0, 17.0)
    computes = RICH.speed.compute_s(RICH.local_batch(Settings.of(gpus=gpus, batch=batch * 16, fuse=fuse)))
    assert (np.diff(computes) <= 0).all()


def test_many_predictions_are_those_of_small_pieces() -> None:
    rng = np.random.default_rng(4)
    count = 100_000

    def maybe(values: np.ndarray) -> np.ndarray:
        return np.where(rng.random(count) < 0.5, values, np.nan)

    gpus = rng.choice([1.0, 2.0, 4.0, 8.0, 16.0], count)
    settings = Settings.of(
        gpus=gpus,
        nodes=np.where(gpus > 8, 2.0, 1.0),
        batch=maybe(gpus * rng.uniform(8, 128, count)),
        cap_w=maybe(rng.uniform(60, 390, count)),
        clock_mhz=maybe(rng.uniform(400, 1390, count)),
        cpus=maybe(gpus * rng.uniform(1, 30, count)),
        mem_gib=maybe(gpus * rng.uniform(0, 300, count)),
        fuse=rng.choice([1.0, 2.0, 4.0], count),
    )
    every = RICH.extrapolate(settings)
    for size in (7001, 31):
        for at in range(0, count, max(size, count // 60)):
            some = RICH.extrapolate(settings.take(slice(at, at + size)))
            assert np.array_equal(some.samples_s, every.samples_s[at : at + size])
            assert np.array_equal(some.watts, every.watts[at : at + size])


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        (
            {"gpus": 17},
            "gpus is 17: made-up on a100 was measured from 1 to 8, and predictions reach from 0.5 to 16",
        ),
        (
            {"batch": 7},
            "batch is 7 per GPU: made-up on a100 was measured from 16 to 64, and .* from 8 to 128",
        ),
        ({"gpus": 4, "batch": 24}, "batch is 6 per GPU"),
        ({"batch": 129}, "batch is 129 per GPU"),
        ({"cap_w": 49}, "cap_w is 49: .* from 100 to 400, and predictions reach from 50 to 800"),
        ({"cap_w": 801}, "cap_w is 801: "),
        ({"clock_mhz": 299}, "clock_mhz is 299: "),
        ({"clock_mhz": 2801}, "clock_mhz is 2801: "),
        (
            {"gpus": 2, "batch": 64, "cpus": 0.9},
            "cpus is 0.45 per GPU: .* from 1 to 16, and .* reach from 0.5$",
        ),
        ({"mem_gib": 9}, "mem_gib is 9 per GPU: .* from 20 to 200, and predictions reach from 10$"),
        ({"fuse": 9}, "fuse is 9: "),
    ],
)
def test_settings_too_far_from_the_measurements_are_refused_by_name(
    knobs: dict[str, float], words: str
) -> None:
    workload = replace(RICH, measured=MappingProxyType(RANGES))
    with pytest.raises(OutOfRange, match=words):
        workload.predict(Settings.of(**knobs))
    samples_s, watts = workload.extrapolate(Settings.of(**knobs))
    assert samples_s[0] > 0
    assert watts[0] > 0


def test_up_to_twice_what_was_measured_is_answered() -> None:
    workload = replace(RICH, measured=MappingProxyType(RANGES))
    edges = Settings.of(
        gpus=[16, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        nodes=[2, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        batch=[512, 8, 128, 32, 32, 32, 32, 32, 32, 32],
        cap_w=[FREE, FREE, FREE, 50, 800, FREE, FREE, FREE, FREE, FREE],
        clock_mhz=[FREE, FREE, FREE, FREE, FREE, 300, 2800, FREE, FREE, FREE],
        cpus=[FREE, FREE, FREE, FREE, FREE, FREE, FREE, 0.5, 9999, FREE],
        mem_gib=[FREE, FREE, FREE, FREE, FREE, FREE, FREE, 10, 9999, FREE],
        fuse=[1, 1, 1, 1, 1, 1, 1, 1, 1, 8],
    )
    assert workload.in_range(edges).all()
    assert (workload.predict(edges).samples_s > 0).all()


def test_one_setting_out_of_range_refuses_all_and_is_the_one_that_is_named() -> None:
    workload = replace(RICH, measured=MappingProxyType(RANGES))
    settings = Settings.of(gpus=[1, 2, 64], batch=[32, 64, 64 * 32])
    assert workload.in_range(settings).tolist() == [True, True, False]
    with pytest.raises(OutOfRange, match="gpus is 64"):
        workload.predict(settings)


def test_a_knob_that_was_never_varied_reaches_far_but_not_everywhere() -> None:
    assert ask(RICH, gpus=64, nodes=8, batch=64 * 32, cap_w=390)[0] > 0
    with pytest.raises(OutOfRange, match=r"gpus is 1000.* never varied in it.* from 1 to 64"):
        ask(RICH, gpus=1000, nodes=125, batch=64000)
    with pytest.raises(OutOfRange, match="fuse is 1000"):
        ask(build_workload(speed=SPEED), batch=32, fuse=1000)
    with pytest.raises(OutOfRange, match="cap_w is 5"):
        ask(build_workload(speed=SPEED), batch=32, cap_w=5)


def surprised(workload: Workload, truth: Workload, times: int = 1, **knobs: object) -> Workload:
    """Return *workload* updated with observations of *truth*."""
    rows = Settings.of(**knobs)
    for _ in range(times):
        workload = workload.observe(rows, *truth.extrapolate(rows))
    return workload


def test_expected_observations_change_nothing() -> None:
    rows = Settings.of(batch=[32, 64], gpus=[1, 2])
    samples_s, watts = RICH.extrapolate(rows)
    assert RICH.observe(rows, samples_s * 1.09, watts * 0.92) is RICH
    assert RICH.observe(rows, samples_s * 0.93) is RICH
    assert RICH.observe(rows, samples_s, np.full(2, np.nan)) is RICH


@pytest.mark.parametrize("factor", [0.3, 0.8, 1.3, 3.0])
def test_an_unexpected_speed_is_learnt_after_a_few_observations(factor: float) -> None:
    truth = replace(RICH, speed=Speed(factor * 0.02, factor * 0.001, 0.0, factor * 0.012, factor * 0.003))
    for knobs in ({"batch": 32.0}, {"batch": 48.0, "cap_w": 150.0}, {"gpus": 4.0, "batch": 128.0}):
        seen = surprised(RICH, truth, 4, **knobs)
        assert ask(seen, **knobs)[0] == pytest.approx(ask(truth, **knobs)[0], rel=0.1)


@pytest.mark.parametrize("factor", [0.5, 0.85, 1.2, 2.0])
def test_unexpected_watts_are_learnt_and_keep_the_speed(factor: float) -> None:
    rows = Settings.of(batch=32)
    samples_s, watts = RICH.extrapolate(rows)
    seen = RICH.observe(rows, samples_s, factor * watts)
    assert seen.predict(rows).watts == pytest.approx(factor * watts)
    assert seen.predict(rows).samples_s == pytest.approx(samples_s)
    assert seen.speed is RICH.speed


def test_unknown_watts_are_learnt() -> None:
    for gpu in ("a100", "unheard-of"):
        nothing = build_workload(throttle=Throttle(gpu, np.ones(1), np.full(1, np.nan)), metered=False)
        rows = Settings.of(batch=32)
        seen = nothing.observe(rows, nothing.extrapolate(rows).samples_s, np.array([123.0]))
        assert seen.metered
        assert seen.predict(rows).watts == pytest.approx([123.0])


def test_a_capped_gpu_stays_below_its_cap_whatever_an_uncapped_one_draws() -> None:
    rows = Settings.of(batch=32)
    samples_s, watts = RICH.extrapolate(rows)
    seen = RICH.observe(rows, samples_s, 1.4 * watts)
    assert ask(seen, batch=32, cap_w=200)[1] <= 200 * 1.01


def test_learning_on_many_gpus_changes_one_gpu_by_less_than_half_as_much() -> None:
    truth = replace(RICH, speed=replace(SPEED, second_gpu_s=0.1))
    rows = Settings.of(gpus=[4, 8], batch=[128, 256])
    seen = surprised(RICH, truth, 4, gpus=[4, 8], batch=[128, 256])
    assert max_relative_error(seen.extrapolate(rows).samples_s, truth.extrapolate(rows).samples_s) < 0.11
    surprise = RICH.extrapolate(rows).samples_s.sum() / truth.extrapolate(rows).samples_s.sum()
    alone = Settings.of(batch=[16, 32, 64])
    moved = RICH.extrapolate(alone).samples_s / seen.extrapolate(alone).samples_s
    assert (moved < surprise**0.5).all()
    assert (moved > 0.9).all()


def test_learning_on_one_gpu_keeps_the_cost_of_scaling() -> None:
    truth = replace(RICH, speed=replace(SPEED, sample_s=0.002))
    seen = surprised(RICH, truth, 4, batch=[32, 64])
    for gpus, nodes in ((4, 1), (8, 2)):
        knobs = {"gpus": gpus, "nodes": nodes, "batch": 32 * gpus}
        assert ask(seen, **knobs)[0] == pytest.approx(ask(truth, **knobs)[0], rel=0.1)


def test_the_first_measured_scaling_replaces_the_assumption_of_perfect_scaling() -> None:
    alone = build_workload(speed=Speed(0.02, 0.001))
    assert ask(alone, gpus=4, batch=128)[0] == pytest.approx(4 * ask(alone, batch=32)[0])
    truth = build_workload()
    before = max_relative_error([ask(alone, gpus=4, batch=128)[0]], [ask(truth, gpus=4, batch=128)[0]])
    seen = surprised(alone, truth, 1, gpus=4, batch=128)
    after = max_relative_error([ask(seen, gpus=4, batch=128)[0]], [ask(truth, gpus=4, batch=128)[0]])
    assert before > 0.2
    assert after < 0.3 * before


def test_a_step_that_waits_for_its_loader_teaches_nothing_about_the_gpu() -> None:
    rows = Settings.of(batch=32, cpus=1)
    seen = RICH.observe(rows, 0.5 * RICH.extrapolate(rows).samples_s)
    assert seen.speed is RICH.speed


def test_learning_keeps_the_predictable_range() -> None:
    rows = Settings.of(batch=32)
    for workload in (RICH, replace(RICH, measured=MappingProxyType({"gpus": (1.0, 8.0)}))):
        seen = workload.observe(rows, 2 * workload.extrapolate(rows).samples_s)
        assert seen is not workload
        for knobs in ({"batch": 8}, {"batch": 128}, {"gpus": 16, "nodes": 2, "batch": 512}):
            assert ask(seen, **knobs)[0] > 0


def test_observations_widen_the_predictable_range() -> None:
    workload = replace(RICH, measured=MappingProxyType(RANGES))
    far = Settings.of(gpus=32, nodes=4, batch=1024)
    assert not workload.in_range(far).any()
    seen = workload.observe(far, 0.5 * workload.extrapolate(far).samples_s)
    assert seen.predict(far).samples_s[0] > 0
    assert seen.measured["cap_w"] == RANGES["cap_w"]
    assert workload.measured["gpus"] == (1.0, 8.0)


@given(
    st.lists(
        st.tuples(st.sampled_from(((1, 1), (2, 1), (8, 1), (8, 2))), st.floats(8, 128), st.floats(0.2, 5))
    )
)
def test_after_any_observation_predictions_stay_finite_and_positive(rows: list) -> None:
    seen = RICH
    for (gpus, nodes), batch, factor in rows:
        row = Settings.of(gpus=gpus, nodes=nodes, batch=batch * gpus)
        seen = seen.observe(row, RICH.extrapolate(row).samples_s * factor)
    for column in seen.extrapolate(
        Settings.of(gpus=[1, 2, 8, 16], nodes=[1, 1, 1, 2], batch=[32, 64, 256, 512])
    ):
        assert np.isfinite(column).all()
        assert (column > 0).all()


def test_the_sensitivity_matrix_has_cores_down_and_memory_across() -> None:
    cpus, mem_gib = np.array([1.0, 8.0, 24.0]), np.array([0.0, 200.0])
    matrix = RICH.sensitivity_matrix(cpus, mem_gib)
    assert matrix.shape == (3, 2)
    for row, cores in enumerate(cpus):
        for column, memory in enumerate(mem_gib):
            assert matrix[row, column] == pytest.approx(ask(RICH, batch=32, cpus=cores, mem_gib=memory)[0])


def test_the_least_demand_keeps_the_speed_and_nothing_smaller_does() -> None:
    cpus, mem_gib = np.array([24.0, 4.0, 8.0, 16.0, 12.0]), np.array([250.0, 50.0, 150.0, 100.0, 200.0])
    cores, memory = RICH.find_least_demand(cpus, mem_gib)
    best = ask(RICH, batch=32)[0]
    assert ask(RICH, batch=32, cpus=cores, mem_gib=memory)[0] >= 0.98 * best
    assert all(ask(RICH, batch=32, cpus=less, mem_gib=250)[0] < 0.98 * best for less in cpus[cpus < cores])
    assert all(
        ask(RICH, batch=32, cpus=cores, mem_gib=less)[0] < 0.98 * best for less in mem_gib[mem_gib < memory]
    )
