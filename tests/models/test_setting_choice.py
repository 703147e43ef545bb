"""Choice of caps and clocks from measurements, and checks of the laws."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from wattline import Profile, Settings
from wattline.core.table import Floats
from wattline.errors import ConfigError, ModelError
from wattline.models.fit import fit_workload
from wattline.models.setting_choice import SettingChoice, check_law, choose_setting

CLOCKS_MHZ = np.arange(600.0, 1401.0, 50.0)


def energy(values: Floats, samples_s: Floats, watts: Floats) -> Floats:
    return watts / samples_s


def make_clocks(clock_mhz: Floats, watts: Floats) -> Profile:
    """Return measurements of a job of which a part scales with the clock."""
    samples_s = 1.0 / (0.3 + 0.7 * 1400.0 / clock_mhz)
    return Profile.of(
        model="m", gpu="a100", batch=1, clock_mhz=clock_mhz, samples_s=100 * samples_s, watts=watts
    )


def lawful_watts(clock_mhz: Floats) -> Floats:
    return 80.0 + 0.15 * clock_mhz * (1.0 + 0.0009 * np.maximum(clock_mhz - 1000.0, 0.0)) ** 2


def test_predictions_pass_through_measured_speeds_that_no_law_follows() -> None:
    caps = np.array([100.0, 150, 200, 250, 300, 350, 400])
    speeds = np.array([200.0, 300, 420, 430, 440, 600, 610])
    watts = np.array([95.0, 145, 195, 200, 205, 300, 305])
    rows = Profile.of(model="m", gpu="a100", batch=32, cap_w=caps, samples_s=speeds, watts=watts)
    predicted = fit_workload(rows).predict(Settings.of(batch=32, cap_w=caps)).samples_s
    assert predicted == pytest.approx(speeds, rel=0.01)


def test_a_clear_gain_between_measured_settings_is_chosen() -> None:
    rows = make_clocks(CLOCKS_MHZ[[0, 3, 6, 10, 13, 16]], lawful_watts(CLOCKS_MHZ[[0, 3, 6, 10, 13, 16]]))
    truth = make_clocks(CLOCKS_MHZ, lawful_watts(CLOCKS_MHZ))
    choice = choose_setting(rows, "clock_mhz", energy, CLOCKS_MHZ)
    assert choice.value == CLOCKS_MHZ[np.argmin(truth.watts / truth.samples_s)]
    assert not choice.is_measured
    assert choice.gain > choice.error
    assert "not measured" in str(choice)


def test_a_gain_within_the_models_own_error_is_not_chosen() -> None:
    rng = np.random.default_rng(1)
    clocks = CLOCKS_MHZ[[0, 3, 6, 10, 13, 16]]
    rows = make_clocks(clocks, lawful_watts(clocks) * rng.normal(1.0, 0.05, len(clocks)))
    choice = choose_setting(rows, "clock_mhz", energy, CLOCKS_MHZ)
    assert choice.is_measured
    assert choice.value == clocks[np.argmin(rows.watts / rows.samples_s)]
    assert choice.gain <= choice.error
    assert "measured" in str(choice)


def test_a_law_that_does_not_fit_a_chip_is_stated_and_not_used() -> None:
    # Two voltages: below 1000 MHz the chip draws far less, which no law with one knee follows.
    stepped = np.where(CLOCKS_MHZ < 1000.0, 0.6, 1.0) * (100.0 + 0.3 * CLOCKS_MHZ)
    rows = make_clocks(CLOCKS_MHZ, stepped)
    check = check_law(rows, "clock_mhz")
    assert not check.fits
    assert "the clock law does not fit" in str(check)
    assert "steps off" in str(check)
    assert choose_setting(rows, "clock_mhz", energy).is_measured
    assert check_law(make_clocks(CLOCKS_MHZ, lawful_watts(CLOCKS_MHZ)), "clock_mhz").fits


def test_where_no_law_fits_settings_between_are_on_lines() -> None:
    stepped = np.where(CLOCKS_MHZ < 1000.0, 0.6, 1.0) * (100.0 + 0.3 * CLOCKS_MHZ)
    rows = make_clocks(CLOCKS_MHZ, stepped)
    between = CLOCKS_MHZ[:-1] + 25.0
    predicted = fit_workload(rows, lines=("clock_mhz",)).predict(Settings.of(batch=1, clock_mhz=between))
    assert predicted.watts == pytest.approx(np.interp(between, CLOCKS_MHZ, stepped), rel=0.01)
    assert predicted.samples_s == pytest.approx(np.interp(between, CLOCKS_MHZ, rows.samples_s), rel=0.01)


def test_the_reason_for_a_measured_setting_is_stated() -> None:
    within = SettingChoice("cap_w", 150.0, 150.0, 146.0, 0.01, 0.02)
    assert str(within) == (
        "cap 150 W, measured; 146 W is predicted 1.0 % better, which is within the model's own error (2.0 %)"
    )
    assert "by a cap law that does not fit" in str(within._replace(error=0.001, law_fits=False))
    assert "within the model's own error (unknown)" in str(within._replace(error=float("nan")))


def test_two_settings_are_too_few_to_choose_another() -> None:
    rows = make_clocks(CLOCKS_MHZ[[0, 16]], lawful_watts(CLOCKS_MHZ[[0, 16]]))
    assert choose_setting(rows, "clock_mhz", energy).is_measured


def test_an_aim_that_nothing_meets_is_refused() -> None:
    rows = make_clocks(CLOCKS_MHZ, lawful_watts(CLOCKS_MHZ))
    with pytest.raises(ConfigError, match="no measured clock meets the aim"):
        choose_setting(rows, "clock_mhz", lambda values, samples_s, watts: np.full(len(values), np.inf))
    with pytest.raises(ModelError, match="no cap was measured with speed and watts"):
        choose_setting(rows, "cap_w", energy)


DATA = Path(os.environ.get("WATTLINE_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "zeus").exists(), reason="the published measurements are not here")
@pytest.mark.parametrize("eta", [1.0, 0.5])
def test_on_published_caps_the_choice_is_never_worse_than_the_best_measured_cap(eta: float) -> None:
    import csv

    losses: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for path in sorted(DATA.glob("zeus/summary_power_*.csv")):
        curves: dict[tuple[str, ...], list[tuple[float, ...]]] = defaultdict(list)
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                key = row["dataset"], row["optimizer"], row["batch_size"]
                curves[key].append(
                    tuple(float(row[k]) for k in ("power_limit", "time_per_epoch", "average_power"))
                )
        for points in list(curves.values())[::3]:
            cap_w, seconds, watts = np.array(sorted(points)).T
            seen = np.unique(np.round(np.linspace(0, len(cap_w) - 1, 5)).astype(np.int64))

            def cost(values: Floats, samples_s: Floats, watts: Floats, most: float = cap_w.max()) -> Floats:
                return (eta * watts + (1.0 - eta) * most) / samples_s

            rows = Profile.of(
                model="m", gpu="v100", cap_w=cap_w[seen], samples_s=1 / seconds[seen], watts=watts[seen]
            )
            truth = cost(cap_w, 1 / seconds, watts)
            chosen = int(np.flatnonzero(cap_w == choose_setting(rows, "cap_w", cost, cap_w).value)[0])
            losses[path.stem].append((truth[chosen] / truth.min(), truth[seen].min() / truth.min()))
    assert losses
    for of_gpu in losses.values():
        ours, best_measured = np.mean(of_gpu, axis=0)
        assert ours <= best_measured + 1e-9
