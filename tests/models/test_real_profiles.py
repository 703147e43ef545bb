"""Profiles as users write them, with several kinds of rows."""

import numpy as np
import pytest

from wattline import Profile, Settings, WorkloadModels, fit
from wattline.errors import NotFitted, ProfileError
from wattline.models.fit import fit_workload
from wattline.models.fit_quality import FittedWorkload
from wattline.models.held_out import cross_validate
from wattline.models.library import load_models, write_models
from wattline.models.power.clock_power import clock_watts

CAPS = [100.0, 150.0, 200.0, 250.0]


def capped(**more: object) -> Profile:
    columns = {
        "model": "m", "gpu": "v100", "batch": 64, "cap_w": CAPS,
        "samples_s": [50.0, 80.0, 95.0, 100.0], "watts": [98.0, 146.0, 190.0, 220.0],
    }  # fmt: skip
    return Profile.of(**(columns | more))


def test_a_row_without_a_cap_is_the_end_of_the_curve() -> None:
    profile = Profile.of(
        model="m", gpu="v100", batch=64, cap_w=[100.0, 125.0, 150.0, np.nan],
        samples_s=[50.0, 65.0, 80.0, 140.0], watts=[98.0, 123.0, 148.0, 290.0],
    )  # fmt: skip
    said = fit_workload(profile).extrapolate(profile.settings)
    assert said.samples_s == pytest.approx(profile.samples_s, rel=0.06)
    assert said.watts == pytest.approx(profile.watts, rel=0.06)


@pytest.mark.parametrize("gpu", ["v100", "unheard-of"])
def test_a_cap_that_never_changed_does_not_hide_the_clocks(gpu: str) -> None:
    clock = np.array([600.0, 800.0, 1000.0, 1200.0, 1400.0])
    profile = Profile.of(
        model="m", gpu=gpu, batch=64, cap_w=300, clock_mhz=clock,
        samples_s=clock / 14, watts=clock_watts(clock, 50.0, 0.1, 1000.0, 5e-4),
    )  # fmt: skip
    found = fit_workload(profile)
    assert found.throttle.clocks is not None
    said = found.extrapolate(Settings.of(clock_mhz=clock, batch=64))
    assert said.samples_s == pytest.approx(profile.samples_s, rel=0.03)
    assert said.watts == pytest.approx(profile.watts, rel=0.03)


def test_a_grid_of_caps_and_clocks_has_curves_against_both() -> None:
    caps, clocks = (a.reshape(-1) for a in np.meshgrid(CAPS, [600.0, 900.0, 1200.0, 1500.0]))
    speed = np.minimum(caps / 250, clocks / 1500) * 100
    profile = Profile.of(
        model="m", gpu="v100", batch=64, cap_w=caps, clock_mhz=clocks, samples_s=speed, watts=speed * 2 + 20
    )
    throttle = fit_workload(profile).throttle
    assert throttle.caps is not None
    assert throttle.clocks is not None


def test_a_contradiction_is_seen_where_only_one_row_says_its_batch() -> None:
    with pytest.raises(ProfileError, match="samples_s is 500, but line 1 says 100"):
        fit(Profile.of(model="m", gpu="v100", batch=[np.nan, 64.0], samples_s=[100.0, 500.0]))
    with pytest.raises(NotFitted, match="in 1 setting"):
        fit(Profile.of(model="m", gpu="v100", batch=[np.nan, 64.0], samples_s=[100.0, 101.0]))


def test_models_of_other_sizes_are_other_models() -> None:
    small = capped(model="gpt-1.3b")
    large = capped(model="gpt-13b", samples_s=[5.0, 8.0, 9.5, 10.0])
    models = WorkloadModels((fit_workload(small), fit_workload(large)))
    assert models.predict("gpt-13b", "v100", batch=64).samples_s[0] == pytest.approx(10.0, rel=0.02)
    assert models.predict("GPT 1.3B", "v100", batch=64).samples_s[0] == pytest.approx(100.0, rel=0.02)


def test_a_clock_read_off_caps_saves_no_more_than_physics_allows() -> None:
    flat = capped(samples_s=[100.0, 100.0, 100.0, 100.0], watts=[95.0, 110.0, 112.0, 112.0])
    found = fit_workload(flat)
    clocks = np.linspace(700.0, 1530.0, 84)
    watts = found.extrapolate(Settings.of(clock_mhz=clocks, batch=64)).watts
    assert (np.abs(np.diff(watts)) < 0.05 * watts[1:]).all()
    assert watts[-1] == pytest.approx(112.0, rel=0.03)


@pytest.mark.parametrize("nonsense", [0.0, -5.0, np.inf, np.nan, 1e-300, 1e300])
def test_nonsense_teaches_nothing(nonsense: float) -> None:
    found = fit_workload(capped())
    rows = Settings.of(batch=64, cap_w=[150.0])
    expected = found.extrapolate(rows)
    assert found.observe(rows, np.array([nonsense])) is found
    assert found.observe(rows, expected.samples_s, np.array([nonsense])) is found


def test_a_fast_array_is_no_fast_job() -> None:
    found = fit_workload(capped())
    fused, alone = Settings.of(batch=64, fuse=[8]), Settings.of(batch=[64])
    seen = found.observe(fused, 3 * found.extrapolate(fused).samples_s)
    assert seen.extrapolate(alone).samples_s == pytest.approx(found.extrapolate(alone).samples_s)
    ratio = seen.extrapolate(fused).samples_s / found.extrapolate(fused).samples_s
    assert ratio == pytest.approx([3.0], rel=0.02)


def test_a_slow_loader_is_no_slow_gpu() -> None:
    cpus = [1.0, 2.0, 4.0, 8.0]
    found = fit_workload(
        Profile.of(model="m", gpu="v100", batch=64, cpus=cpus, samples_s=[10.0, 20.0, 40.0, 60.0])
    )
    starved, free = Settings.of(batch=64, cpus=[2.0]), Settings.of(batch=[64])
    seen = found.observe(starved, np.array([10.0]))
    assert seen.extrapolate(starved).samples_s == pytest.approx([10.0], rel=0.02)
    assert seen.extrapolate(free).samples_s == pytest.approx(found.extrapolate(free).samples_s)


def test_an_observation_at_one_batch_size_scales_the_others_equally() -> None:
    rows = [8.0, 16.0, 32.0, 64.0, 128.0]
    found = fit_workload(
        Profile.of(
            model="m", gpu="v100", batch=rows, samples_s=np.array(rows) / (0.02 + 0.002 * np.array(rows))
        )
    )
    at = Settings.of(batch=[128])
    seen = found.observe(at, 0.5 * found.extrapolate(at).samples_s)
    other = Settings.of(batch=[32])
    ratio = seen.extrapolate(other).samples_s / found.extrapolate(other).samples_s
    assert 0.4 < ratio[0] < 0.75


def test_jobs_that_were_only_measured_packed_are_not_faster_spread() -> None:
    gpus = np.array([1.0, 2, 4, 8, 16, 32])
    step_s = 0.05 + 0.01 * (gpus > 1) + 0.01 * np.minimum(np.maximum(gpus - 2, 0), 6)
    found = fit_workload(
        Profile.of(
            model="m",
            gpu="a100",
            gpus=gpus,
            nodes=np.ceil(gpus / 8),
            batch=32 * gpus,
            samples_s=32 * gpus / step_s,
        )
    )
    speeds = found.extrapolate(Settings.of(gpus=8, nodes=[1, 2, 4, 8], batch=256)).samples_s
    assert (np.diff(speeds) <= 1e-9).all()


def test_one_chip_has_one_voltage() -> None:
    rng = np.random.default_rng(3)
    clock = np.linspace(800.0, 1500.0, 6)
    parts = [
        (
            str(job),
            clock_watts(clock, rng.uniform(40, 80), rng.uniform(0.1, 0.3), 1100.0, 8e-4)
            * rng.normal(1.0, 0.005, len(clock)),
        )
        for job in range(7)
    ]
    profile = Profile.of(
        model=[name for name, _ in parts for _ in clock], gpu="unheard-of", clock_mhz=np.tile(clock, 7),
        samples_s=np.tile(clock / 10, 7), watts=np.concatenate([watts for _, watts in parts]),
    )  # fmt: skip
    knees = {float(w.throttle.clocks.watts_law[0, 2]) for w in fit(profile).workloads if w.throttle.clocks}
    assert len(knees) == 1
    assert knees.pop() == pytest.approx(1100.0, abs=60.0)


def test_rows_that_do_not_go_together_are_named() -> None:
    falling = capped(samples_s=[100.0, 60.0, 30.0, 20.0])
    fitted = FittedWorkload(fit_workload(falling), falling, cross_validate(falling))
    assert fitted.contradictions[0].startswith("profile:4: samples_s is 20, the fit predicts")
    assert not FittedWorkload(fit_workload(capped()), capped(), cross_validate(capped())).contradictions


def test_names_in_any_script_survive_a_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    name = 'gpt "🚀\\ñ\x7f'
    write_models(WorkloadModels((fit_workload(capped(model=name)),)), tmp_path / "m.toml")
    assert load_models(tmp_path / "m.toml").workloads[0].model == name
