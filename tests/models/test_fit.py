"""Fits of workload models, and the errors for profiles that cannot be fitted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.synthetic_workloads import (
    ARRAY,
    CAPS_W,
    CLOCKS_MHZ,
    DEMAND,
    KNEE_MHZ,
    SPEED,
    build_throttle,
    build_workload,
    cap_curves,
    clock_curves,
    combine_knobs,
    join_profiles,
    max_relative_error,
    measure,
    rename_model,
)
from wattline.errors import NotFitted, OutOfRange, ProfileError
from wattline.measurement.merge import merged
from wattline.measurement.points import Profile, read_profile
from wattline.measurement.settings import Settings
from wattline.models.array_speed import DEFAULT_SERIAL
from wattline.models.demand import DemandModel
from wattline.models.fit import fit, fit_workload
from wattline.models.workload import DEFAULT_WAITING_POWER, Workload

FREE = np.nan
LOCAL = (16.0, 32.0, 64.0, 128.0)
WIDE = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (16, 2), (32, 4))


def scaled(*gpus_nodes: tuple[int, int], local: tuple[float, ...] = LOCAL) -> dict[str, np.ndarray]:
    gpus, nodes, batch = np.array([(g, n, g * b) for g, n in gpus_nodes for b in local], dtype=np.float64).T
    return {"gpus": gpus, "nodes": nodes, "batch": batch}


def agree(found: Workload, truth: Workload, within: float, watts: bool = True, **knobs: object) -> None:
    settings = Settings.of(**knobs)
    said, true = found.predict(settings), truth.extrapolate(settings)
    assert max_relative_error(said.samples_s, true.samples_s) < within
    if watts:
        assert max_relative_error(said.watts, true.watts) < within


# -- profiles that cannot be fitted


def test_one_measurement_is_no_curve() -> None:
    with pytest.raises(
        NotFitted, match=r"made on a100: 1 measurement .* expected at least 2 different"
    ) as caught:
        fit(Profile.of(model="made", gpu="a100", batch=32, samples_s=100.0))
    assert caught.value.hint


def test_many_measurements_of_one_setting_are_no_curve() -> None:
    profile = Profile.of(model="made", gpu="a100", batch=32, samples_s=[100.0, 101.0, 99.0])
    with pytest.raises(NotFitted, match=r"made on a100: 3 measurements .* in 1 setting, expected at least 2"):
        fit(profile)


def test_watts_without_speeds_are_no_curve() -> None:
    profile = Profile.of(model="made", gpu="a100", batch=[8, 16, 32], watts=[200.0, 220.0, 240.0])
    with pytest.raises(NotFitted, match=r"made on a100: (0 measurements of|.*none of them of) samples_s"):
        fit(profile)


def test_fused_jobs_alone_say_nothing_about_one() -> None:
    profile = Profile.of(model="made", gpu="a100", batch=32, fuse=[2, 4, 8], samples_s=[100.0, 120.0, 130.0])
    with pytest.raises(NotFitted, match="made on a100: every measurement is of fused jobs"):
        fit(profile)


def test_one_bad_workload_among_good_ones_is_named() -> None:
    good = measure(build_workload(), batch=[16, 32])
    bad = Profile.of(model="lonely", gpu="t4", samples_s=5.0)
    with pytest.raises(NotFitted, match="lonely on t4"):
        fit(join_profiles(good, bad, good))


def test_measurements_that_contradict_each_other_name_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("model,gpu,batch,samples_s\nm,t4,8,50\nm,t4,16,100\nm,t4,32,150\nm,t4,16,125\n")
    with pytest.raises(ProfileError) as caught:
        fit(read_profile(path))
    assert (caught.value.path, caught.value.line) == (str(path), 5)
    assert caught.value.problem.startswith(
        "samples_s is 125, but line 3 says 100 of the same setting, expected"
    )


def test_watts_that_contradict_each_other_do_too() -> None:
    profile = Profile.of(model="m", gpu="t4", batch=[8, 16, 8], samples_s=[50, 90, 50], watts=[60, 70, 40])
    with pytest.raises(ProfileError, match="profile:3: watts is 40, but line 1 says 60") as caught:
        fit(profile)
    assert caught.value.line == 3


def test_rows_of_different_workloads_or_settings_do_not_contradict_each_other() -> None:
    profile = Profile.of(
        model=["m", "m", "n", "n", "m", "m"],
        gpu=["t4", "t4", "t4", "t4", "a100", "a100"],
        batch=[8, 16, 8, 16, 8, 16],
        samples_s=[50, 90, 500, 900, 300, 500],
    )
    models = fit(profile)
    assert [(w.model, w.gpu) for w in models.workloads] == [("m", "t4"), ("n", "t4"), ("m", "a100")]


def test_measurements_within_their_noise_are_averaged_by_how_many_they_are() -> None:
    profile = Profile.of(
        model="m",
        gpu="t4",
        batch=[8, 16, 8],
        samples_s=[50, 90, 56],
        watts=[40, FREE, FREE],
        n=[1, 1, 3],
        stderr=[2, 1, 4],
    )
    rows = merged(profile)
    assert len(rows) == 2
    eight = rows.take(rows.batch == 8)
    assert eight.samples_s[0] == pytest.approx((50 + 3 * 56) / 4)
    assert eight.watts[0] == 40.0
    assert eight.n[0] == 4.0
    assert eight.stderr[0] == pytest.approx(np.hypot(1 * 2, 3 * 4) / 4)


def test_measurements_that_are_known_to_be_noisy_may_differ_more() -> None:
    columns = {"model": "m", "gpu": "t4", "batch": [8, 16, 8], "samples_s": [50.0, 90.0, 65.0]}
    with pytest.raises(ProfileError):
        fit(Profile.of(**columns, stderr=[1.0, 1.0, 1.0]))
    assert len(merged(Profile.of(**columns, stderr=[5.0, 5.0, 5.0]))) == 2


def test_a_speed_measured_apart_from_its_watts_is_one_measurement() -> None:
    profile = Profile.of(
        model="m", gpu="t4", batch=[8, 16, 8, 16], samples_s=[50, 90, FREE, FREE], watts=[FREE, FREE, 40, 50]
    )
    found = fit(profile).find("m", "t4")
    assert found.predict(Settings.of(batch=[8, 16])).watts == pytest.approx([40, 50])


def test_the_order_of_rows_does_not_matter() -> None:
    profile = measure(
        build_workload(throttle=build_throttle(caps=cap_curves())),
        noise=0.02,
        **combine_knobs(batch=[32, 64], cap_w=CAPS_W),
    )
    asked = Settings.of(batch=[32, 48, 64, 40], cap_w=[150, 210, 333, FREE])
    one = fit_workload(profile).predict(asked)
    other = fit_workload(profile.take(np.random.default_rng(0).permutation(len(profile)))).predict(asked)
    assert one.samples_s == pytest.approx(other.samples_s)
    assert one.watts == pytest.approx(other.watts)


# -- fits recover the truth


@pytest.mark.parametrize("seed", range(3))
def test_settings_that_were_left_out_are_predicted(seed: int) -> None:
    truth = build_workload()
    found = fit_workload(measure(truth, noise=0.01, seed=seed, **scaled(*WIDE)))
    agree(found, truth, 0.03, **scaled((1, 1), (3, 1), (6, 1), (12, 2), (24, 4), local=(24.0, 48.0, 100.0)))


@pytest.mark.parametrize("seed", range(3))
def test_a_cap_that_was_left_out_is_predicted(seed: int) -> None:
    truth = build_workload(throttle=build_throttle(caps=cap_curves(32.0, 64.0)))
    profile = join_profiles(
        measure(truth, noise=0.01, seed=seed, **combine_knobs(batch=[32, 64], cap_w=CAPS_W)),
        measure(truth, noise=0.01, seed=9 + seed, **scaled((1, 1), (2, 1), (4, 1), (8, 1))),
    )
    found = fit_workload(profile)
    agree(found, truth, 0.04, **combine_knobs(batch=[32, 45, 64], cap_w=[140, 165, 210, 265, 330]))
    agree(found, truth, 0.04, gpus=[2, 4], batch=[128, 256], cap_w=[165, 210])


@pytest.mark.parametrize("seed", range(3))
def test_a_clock_that_was_left_out_is_predicted(seed: int) -> None:
    truth = build_workload(throttle=build_throttle(clocks=clock_curves(32.0, 64.0)))
    profile = join_profiles(
        measure(truth, noise=0.01, seed=seed, **combine_knobs(batch=[32, 64], clock_mhz=CLOCKS_MHZ)),
        measure(truth, noise=0.01, seed=9 + seed, **scaled((1, 1), (2, 1), (4, 1), (8, 1))),
    )
    found = fit_workload(profile)
    agree(
        found, truth, 0.04, **combine_knobs(batch=[32, 45, 64], clock_mhz=[620, 780, 930, 1030, 1180, 1370])
    )


def test_the_knee_of_the_clock_is_found_within_a_few_mhz() -> None:
    truth = build_workload(throttle=build_throttle(clocks=clock_curves()))
    found = fit_workload(measure(truth, batch=32, clock_mhz=CLOCKS_MHZ))
    assert found.throttle.clocks is not None
    assert found.throttle.clocks.watts_law[0, 2] == pytest.approx(KNEE_MHZ, abs=8)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_cores_storage_and_data_set_are_found(noise: float) -> None:
    truth = build_workload(demand=DEMAND)
    knobs = combine_knobs(cpus=[2, 4, 8, 16, 32], mem_gib=[20, 60, 100, 140, 180, 300])
    profile = join_profiles(
        measure(truth, noise=noise, batch=32, **knobs),
        measure(truth, noise=noise, **scaled((1, 1), (4, 1))),
    )
    found = fit_workload(profile)
    assert found.demand.core_s == pytest.approx(DEMAND.core_s, rel=0.05)
    assert found.demand.storage_s == pytest.approx(DEMAND.storage_s, rel=0.05)
    assert found.demand.dataset_gib == pytest.approx(DEMAND.dataset_gib, rel=0.05)
    agree(
        found,
        truth,
        0.05,
        watts=False,
        batch=32,
        **combine_knobs(cpus=[3, 6, 12, 24], mem_gib=[40, 80, 120, 250]),
    )
    agree(
        found, truth, 0.05, watts=False, gpus=4, batch=128, **combine_knobs(cpus=[12, 48], mem_gib=[160, 480])
    )


def test_demand_measured_on_several_gpus_is_of_one() -> None:
    truth = build_workload(demand=DEMAND)
    found = fit_workload(
        measure(truth, gpus=4, batch=128, **combine_knobs(cpus=[8, 16, 32, 64, 128], mem_gib=[80, 400, 1200]))
    )
    assert found.demand.core_s == pytest.approx(DEMAND.core_s, rel=0.02)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_the_serial_share_of_an_array_is_found_on_one_gpu_and_on_several(noise: float) -> None:
    truth = build_workload(array=ARRAY)
    for gpus in (1, 4):
        fused = measure(truth, noise=noise, gpus=gpus, batch=32 * gpus, fuse=[1, 2, 4, 8])
        solo = measure(truth, noise=noise, seed=1, **scaled((1, 1), (2, 1), (4, 1), (8, 1)))
        found = fit_workload(join_profiles(fused, solo))
        assert found.array.serial == pytest.approx(ARRAY.serial, rel=0.05)


def test_the_memory_of_an_array_is_found() -> None:
    truth = build_workload(array=ARRAY)
    fused = measure(truth, batch=32, fuse=[1, 2, 4, 8])
    fused = replace(fused, peak_gib=ARRAY.peak_gib(fused.fuse))
    found = fit_workload(fused).array
    assert (found.shared_gib, found.member_gib) == pytest.approx((ARRAY.shared_gib, ARRAY.member_gib))


def test_the_memory_of_a_member_does_not_depend_on_larger_batches_of_one_job() -> None:
    truth = build_workload(array=ARRAY)
    fused = measure(truth, batch=32, fuse=[1, 2, 4, 8])
    fused = replace(fused, peak_gib=ARRAY.peak_gib(fused.fuse))
    larger = measure(truth, batch=[64, 128, 256])
    larger = replace(larger, peak_gib=np.array([8.0, 16.0, 32.0]))
    found = fit_workload(join_profiles(fused, larger)).array
    assert (found.shared_gib, found.member_gib) == pytest.approx(
        (ARRAY.shared_gib, ARRAY.member_gib), rel=0.05
    )


@pytest.mark.parametrize("wait", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_what_a_waiting_gpu_draws_is_found(wait: float, noise: float) -> None:
    truth = build_workload(waiting_power=wait)
    found = fit_workload(measure(truth, noise=noise, **scaled(*WIDE)))
    assert found.waiting_power == pytest.approx(wait, abs=0.05)


# -- unmeasured knobs


def test_what_was_not_measured_is_the_prior() -> None:
    found = fit_workload(measure(build_workload(), watts=False, batch=[16, 32, 64]))
    assert not found.metered
    assert found.waiting_power == DEFAULT_WAITING_POWER
    assert found.demand == DemandModel()
    assert found.array.serial == DEFAULT_SERIAL
    assert found.throttle.caps is found.throttle.clocks is None
    assert found.measured == {"batch": (16.0, 64.0)}
    assert found.usual_batch == 32.0
    assert found.source.points == 3


def test_one_gpu_and_one_batch_size_scale_perfectly_until_measured() -> None:
    found = fit_workload(
        measure(build_workload(throttle=build_throttle(caps=cap_curves())), batch=64, cap_w=CAPS_W)
    )
    samples_s = found.predict(Settings.of(gpus=[1, 2, 4, 8], batch=64)).samples_s
    assert samples_s == pytest.approx(samples_s[0] * np.array([1, 2, 4, 8]), rel=1e-6)


def test_one_gpu_and_several_batch_sizes_scale_perfectly_at_equal_share() -> None:
    found = fit_workload(measure(build_workload(), batch=[16, 32, 64]))
    samples_s = found.predict(Settings.of(gpus=[1, 2, 4, 8], batch=[32, 64, 128, 256])).samples_s
    assert samples_s == pytest.approx(samples_s[0] * np.array([1, 2, 4, 8]), rel=1e-6)
    fixed = found.predict(Settings.of(gpus=[1, 4], batch=64)).samples_s
    assert 1 < fixed[1] / fixed[0] < 4


def test_a_second_node_costs_something_before_it_is_measured() -> None:
    found = fit_workload(measure(build_workload(), **scaled((1, 1), (2, 1), (4, 1), (8, 1))))
    inside, across = found.predict(Settings.of(gpus=8, nodes=[1, 2], batch=256)).samples_s
    assert across < inside


def test_clocks_without_watts_still_tell_the_speed() -> None:
    truth = build_workload(throttle=build_throttle(clocks=clock_curves()))
    found = fit_workload(measure(truth, watts=False, batch=32, clock_mhz=CLOCKS_MHZ))
    agree(found, truth, 0.03, watts=False, batch=32, clock_mhz=[700, 950, 1225])
    watts = found.predict(Settings.of(batch=32, clock_mhz=[700, 1400])).watts
    assert (watts > 0).all()


def test_caps_without_watts_still_tell_the_speed_and_hold() -> None:
    truth = build_workload(throttle=build_throttle(caps=cap_curves()))
    found = fit_workload(measure(truth, watts=False, batch=32, cap_w=CAPS_W))
    agree(found, truth, 0.03, watts=False, batch=32, cap_w=[140, 210, 330])
    watts = found.predict(Settings.of(batch=32, cap_w=[120, 200, 290])).watts
    assert (watts <= [120, 200, 290]).all()
    assert (watts > 0).all()


def test_clocks_that_were_measured_answer_for_caps() -> None:
    truth = build_workload(throttle=build_throttle(clocks=clock_curves()))
    found = fit_workload(measure(truth, batch=32, clock_mhz=CLOCKS_MHZ))
    said = found.predict(Settings.of(batch=32, clock_mhz=[700.0, 1000.0, 1300.0]))
    capped = found.predict(Settings.of(batch=32, cap_w=said.watts))
    assert capped.samples_s == pytest.approx(said.samples_s, rel=0.01)
    assert (capped.watts <= 1.01 * said.watts).all()
    free = found.predict(Settings.of(batch=32))
    slack = found.predict(Settings.of(batch=32, cap_w=2 * free.watts))
    assert slack.samples_s == pytest.approx(free.samples_s, rel=0.005)
    assert slack.watts == pytest.approx(free.watts, rel=0.005)


def test_caps_that_were_measured_answer_for_clocks() -> None:
    truth = build_workload(throttle=build_throttle(caps=cap_curves()))
    found = fit_workload(measure(truth, batch=32, cap_w=CAPS_W))
    samples_s, watts = found.predict(Settings.of(batch=32, clock_mhz=[600.0, 900.0, 1200.0, 1410.0]))
    assert (np.diff(samples_s) > 0).all()
    assert (np.diff(watts) > 0).all()
    free = found.predict(Settings.of(batch=32))
    assert samples_s[-1] == pytest.approx(free.samples_s[0], rel=0.01)
    assert watts[-1] == pytest.approx(free.watts[0], rel=0.01)


def test_a_knob_is_limited_as_far_as_it_was_varied() -> None:
    found = fit_workload(measure(build_workload(), **scaled((1, 1), (4, 1))))
    with pytest.raises(OutOfRange, match="gpus is 9: made-up on a100 was measured from 1 to 4"):
        found.predict(Settings.of(gpus=9, batch=9 * 32))
    with pytest.raises(OutOfRange, match="batch is 7 per GPU: made-up on a100 was measured from 16 to 128"):
        found.predict(Settings.of(gpus=4, batch=28))
    assert found.predict(Settings.of(gpus=8, nodes=8, batch=256, cap_w=150, clock_mhz=700)).samples_s[0] > 0


def test_an_unrecorded_batch_is_the_same_for_every_gpu() -> None:
    found = fit_workload(Profile.of(model="m", gpu="a100", gpus=[1, 2, 4], samples_s=[100.0, 190.0, 360.0]))
    assert found.predict(Settings.of(gpus=[1, 2, 4])).samples_s == pytest.approx([100, 190, 360], rel=0.02)


def test_a_row_without_a_batch_is_not_taken_for_a_batch_of_one() -> None:
    known = measure(build_workload(), batch=[16, 32, 64])
    unknown = measure(build_workload(), gpus=2, batch=64)
    found = fit_workload(join_profiles(known, replace(unknown, batch=np.full(1, FREE))))
    assert found.predict(Settings.of(batch=[16, 32, 64])).samples_s == pytest.approx(
        known.samples_s, rel=0.02
    )
    assert found.usual_batch == 32.0


def test_an_unknown_gpu_is_fitted_as_well() -> None:
    found = fit_workload(rename_model(measure(build_workload(), batch=[16, 32, 64]), "made-up", "tpu"))
    assert found.predict(Settings.of(batch=[16, 64])).watts == pytest.approx([280, 280])


@pytest.mark.parametrize("knob", ["cap_w", "clock_mhz"])
def test_a_knob_that_had_one_value_throughout_gives_back_what_was_measured(knob: str) -> None:
    truth = build_workload(throttle=build_throttle(caps=cap_curves(), clocks=clock_curves()))
    profile = measure(truth, batch=[16, 32, 64], **{knob: {"cap_w": 250.0, "clock_mhz": 1100.0}[knob]})
    said = fit_workload(profile).predict(profile.settings)
    assert said.samples_s == pytest.approx(profile.samples_s, rel=0.02)
    assert said.watts == pytest.approx(profile.watts, rel=0.1)


# -- properties of every fit

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "gpus": st.sampled_from((1.0, 1.0, 2.0, 4.0, 8.0)),
            "batch": st.sampled_from((64.0, 128.0, 256.0)),
            "cap_w": st.sampled_from((FREE, 100.0, 150.0, 200.0, 300.0)),
            "clock_mhz": st.sampled_from((FREE, FREE, 700.0, 1000.0, 1400.0)),
            "cpus": st.sampled_from((FREE, FREE, 8.0, 16.0)),
            "mem_gib": st.sampled_from((FREE, FREE, 100.0, 200.0)),
            "fuse": st.sampled_from((1.0, 1.0, 1.0, 2.0)),
            "samples_s": st.floats(50, 5000),
            "watts": st.one_of(st.just(FREE), st.floats(50, 400)),
        }
    ),
    min_size=3,
    max_size=16,
    unique_by=lambda row: repr(
        [row[k] for k in ("gpus", "batch", "cap_w", "clock_mhz", "cpus", "mem_gib", "fuse")]
    ),
).filter(lambda rows: any(row["fuse"] == 1 for row in rows))
ASKED = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from((1.0, 2.0, 8.0)),
        "batch": st.floats(32, 512),
        "cap_w": st.one_of(st.just(FREE), st.floats(60, 500)),
        "clock_mhz": st.one_of(st.just(FREE), st.floats(400, 1400)),
        "cpus": st.one_of(st.just(FREE), st.floats(2, 64)),
        "mem_gib": st.one_of(st.just(FREE), st.floats(20, 500)),
    }
)
UPWARDS = {
    "cap_w": np.linspace(60, 600, 31),
    "clock_mhz": np.linspace(350, 1410, 31),
    "cpus": np.linspace(1, 64, 31),
    "mem_gib": np.linspace(1, 500, 31),
}


def noise(rows: list[dict[str, float]]) -> Workload:
    return fit_workload(Profile.of(model="m", gpu="a100", **{k: [row[k] for row in rows] for k in rows[0]}))


@pytest.mark.parametrize("knob", UPWARDS)
@given(rows=ROWS, asked=ASKED)
def test_whatever_was_measured_more_of_a_knob_never_makes_a_job_slower(
    knob: str, rows: list, asked: dict
) -> None:
    samples_s, watts = noise(rows).extrapolate(Settings.of(**{**asked, knob: UPWARDS[knob]}))
    assert np.isfinite(samples_s).all()
    assert np.isfinite(watts).all()
    assert (samples_s > 0).all()
    assert (watts > 0).all()
    assert (np.diff(samples_s) >= -1e-9 * samples_s[:-1]).all()


@pytest.mark.parametrize("knob", ["cap_w", "clock_mhz"])
@given(rows=ROWS, batch=st.floats(32, 512))
def test_whatever_was_measured_a_higher_cap_or_clock_never_means_fewer_watts(
    knob: str, rows: list, batch: float
) -> None:
    _, watts = noise(rows).extrapolate(Settings.of(batch=batch, **{knob: UPWARDS[knob]}))
    assert (np.diff(watts) >= -1e-9 * watts[:-1]).all()


@given(rows=ROWS)
def test_whatever_was_measured_more_gpus_never_compute_longer(rows: list) -> None:
    found = noise(rows)
    computes = found.speed.compute_s(found.local_batch(Settings.of(gpus=np.arange(1.0, 17.0), batch=256)))
    assert (computes > 0).all()
    assert (np.diff(computes) <= 0).all()


def test_an_empty_profile_is_no_model() -> None:
    with pytest.raises(NotFitted, match="no measurements"):
        fit_workload(measure(build_workload(), batch=[16, 32]).take(slice(0, 0)))


def test_every_coefficient_of_a_clean_profile_is_found() -> None:
    found = fit_workload(measure(build_workload(), **scaled(*WIDE)))
    for name in ("fixed_s", "sample_s", "second_gpu_s", "more_gpus_s", "second_node_s", "more_nodes_s"):
        assert getattr(found.speed, name) == pytest.approx(getattr(SPEED, name), rel=0.01), name
