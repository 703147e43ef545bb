"""Cross-validation of fits."""

import numpy as np
import pytest

from support.synthetic_workloads import (
    CAPS_W,
    build_throttle,
    build_workload,
    cap_curves,
    combine_knobs,
    join_profiles,
    measure,
)
from wattline.errors import NotFitted
from wattline.measurement.points import Profile
from wattline.models.fit import fit_workload
from wattline.models.held_out import HeldOutErrors, cross_validate
from wattline.models.workload import Workload

LOCAL = (8.0, 16.0, 32.0, 64.0, 128.0)


def test_every_setting_is_left_out_once_and_never_seen_by_its_fit() -> None:
    profile = measure(build_workload(), batch=LOCAL)
    seen = []

    def watched(rows: Profile) -> Workload:
        seen.append(set(rows.batch.tolist()))
        return fit_workload(rows)

    found = cross_validate(profile, watched)
    assert [set(LOCAL) - rest for rest in seen] == [{size} for size in LOCAL]
    assert len(found.samples) == len(found.watts) == len(LOCAL)


def test_a_truth_of_the_model_family_is_predicted_without_error() -> None:
    found = cross_validate(measure(build_workload(), **combine_knobs(gpus=[1, 2, 4], batch=[64, 128, 256])))
    assert found.samples_error < 1e-3
    assert found.watts_error < 0.02


def test_an_outlier_has_its_own_error_when_left_out() -> None:
    profile = measure(build_workload(), batch=LOCAL)
    columns = {
        "batch": profile.batch,
        "samples_s": profile.samples_s * [1, 1, 1.5, 1, 1],
        "watts": profile.watts,
    }
    found = cross_validate(Profile.of(model="m", gpu="a100", **columns))
    assert found.samples[2] == pytest.approx(1 - 1 / 1.5, abs=0.05)
    assert found.watts_error < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_the_error_is_about_as_large_as_the_noise(noise: float) -> None:
    truth = build_workload(throttle=build_throttle(caps=cap_curves(32.0, 64.0)))
    profile = measure(truth, noise=noise, seed=5, **combine_knobs(batch=[32, 64], cap_w=CAPS_W))
    found = cross_validate(profile)
    assert 0.3 * noise < found.samples_error < 3 * noise + 0.01
    assert 0.3 * noise < found.watts_error < 3 * noise + 0.01


def test_of_many_settings_a_twentieth_is_left_out_at_a_time() -> None:
    profile = measure(build_workload(), batch=np.linspace(8, 128, 61))
    fits = []

    def counted(rows: Profile) -> Workload:
        fits.append(len(rows))
        return fit_workload(rows)

    found = cross_validate(profile, counted)
    assert len(fits) == 20
    assert sum(61 - left for left in fits) == 61
    assert np.isfinite(found.samples).all()


def test_measurements_of_one_setting_are_left_out_together() -> None:
    once = measure(build_workload(), batch=[8, 16, 32])
    found = cross_validate(join_profiles(once, once))
    assert len(found.samples) == 3


def test_too_few_remaining_rows_give_no_error_value() -> None:
    found = cross_validate(measure(build_workload(), batch=[16, 32]))
    assert np.isnan(found.samples).all()
    assert np.isnan(found.samples_error)
    assert np.isnan(found.watts_error)


def test_unmeasured_watts_have_no_error() -> None:
    found = cross_validate(measure(build_workload(), watts=False, batch=LOCAL))
    assert found.samples_error < 1e-3
    assert np.isnan(found.watts_error)


def test_unpredictable_rows_are_excluded_from_the_mean() -> None:
    found = HeldOutErrors(np.array([0.1, np.nan, 0.3]), np.array([np.nan, np.nan, 0.5]))
    assert (found.samples_error, found.watts_error) == pytest.approx((0.2, 0.5))


def test_a_fit_that_gives_up_leaves_a_gap() -> None:
    def moody(rows: Profile) -> Workload:
        if 16.0 not in rows.batch:
            raise NotFitted("not today")
        return fit_workload(rows)

    found = cross_validate(measure(build_workload(), batch=LOCAL), moody)
    assert np.isnan(found.samples).tolist() == [False, True, False, False, False]
