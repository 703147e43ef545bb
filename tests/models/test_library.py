"""TOML files of fitted models."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.synthetic_workloads import (
    ARRAY,
    CAPS_W,
    CLOCKS_MHZ,
    DEMAND,
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
from wattline.errors import ConfigError, OutOfRange
from wattline.measurement.points import Profile
from wattline.measurement.settings import Settings
from wattline.models.fit import fit, fit_workload
from wattline.models.library import (
    format_models,
    library,
    load_models,
    parse_models,
    reload_coefficients,
    write_models,
)
from wattline.models.workload import MeasurementSource
from wattline.models.workload_models import WorkloadModels

FREE = np.nan
SCALED = {
    "gpus": [1, 1, 2, 4, 8, 8, 16],
    "nodes": [1, 1, 1, 1, 1, 2, 2],
    "batch": [16, 32, 64, 128, 256, 256, 512],
}


def profiles() -> dict[str, Profile]:
    """Return profiles with every kind of measurement."""
    capped = build_workload(throttle=build_throttle(caps=cap_curves(32.0, 64.0)))
    clocked = build_workload(throttle=build_throttle(clocks=clock_curves(32.0, 64.0)))
    hungry, fused = build_workload(demand=DEMAND), build_workload(array=ARRAY)
    array = measure(fused, batch=32, fuse=[1, 2, 4])
    return {
        "scaled": measure(build_workload(), noise=0.01, **SCALED),
        "without watts": measure(build_workload(), watts=False, **SCALED),
        "capped": measure(capped, noise=0.01, **combine_knobs(batch=[32, 64], cap_w=CAPS_W)),
        "clocked": measure(clocked, noise=0.01, **combine_knobs(batch=[32, 64], clock_mhz=CLOCKS_MHZ)),
        "capped without watts": measure(capped, watts=False, **combine_knobs(batch=[32, 64], cap_w=CAPS_W)),
        "clocked without watts": measure(
            clocked, watts=False, **combine_knobs(batch=[32, 64], clock_mhz=CLOCKS_MHZ)
        ),
        "capped without watts but free with": join_profiles(
            measure(capped, watts=False, **combine_knobs(batch=[32, 64], cap_w=CAPS_W)),
            measure(capped, batch=[32, 64]),
        ),
        "caps of two widths": join_profiles(
            measure(capped, **combine_knobs(batch=[32, 64], cap_w=CAPS_W[:7])),
            measure(capped, gpus=2, **combine_knobs(batch=[64, 128], cap_w=CAPS_W)),
        ),
        "capped with steps": Profile.of(
            model="made-up",
            gpu="a100",
            batch=32,
            cap_w=[100, 150, 200, 250, 300, 350, 400],
            samples_s=[200, 300, 420, 430, 440, 600, 610],
            watts=[95, 145, 195, 200, 205, 300, 305],
        ),
        "hungry": measure(hungry, batch=32, **combine_knobs(cpus=[2, 4, 8, 32], mem_gib=[20, 60, 100, 300])),
        "fused": replace(array, peak_gib=ARRAY.peak_gib(array.fuse)),
    }


KINDS = list(profiles())
ASKED = {
    "scaled": Settings.of(**SCALED),
    "capped": Settings.of(batch=[32, 45, 64, 64, 32], cap_w=[150, 180, 260, FREE, 390]),
    "clocked": Settings.of(batch=[32, 45, 64, 64, 32], clock_mhz=[650, 980, 1200, FREE, 1390]),
    "both": Settings.of(batch=[32, 45], cap_w=[150, 300], clock_mhz=[1300, 700]),
    "hungry": Settings.of(batch=32, cpus=[3, 12, FREE], mem_gib=[300, 40, 80]),
    "fused": Settings.of(batch=32, fuse=[2, 3, 8]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fitted_workload_predicts_the_same_after_it_was_written(kind: str) -> None:
    before = fit_workload(profiles()[kind])
    after = reload_coefficients(before)
    for asked in ASKED.values():
        was, now = before.extrapolate(asked), after.extrapolate(asked)
        # Only the laws are written, not how measured speeds and watts correct them.
        # No law follows a curve with steps; the file has the errors of the laws alone.
        tolerance = 0.1 if kind == "capped with steps" else 0.05
        assert max_relative_error(now.samples_s, was.samples_s) < tolerance
        assert max_relative_error(now.watts, was.watts) < 0.07
    for name in ("model", "gpu", "metered"):
        assert getattr(after, name) == getattr(before, name)
    assert after.usual_batch == pytest.approx(before.usual_batch, rel=1e-3)
    assert after.waiting_power == pytest.approx(before.waiting_power, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_twice_is_written_the_same(kind: str) -> None:
    text = format_models([fit_workload(profiles()[kind])])
    assert format_models(parse_models(text).workloads) == text


def test_source_and_measured_ranges_are_preserved() -> None:
    workload = replace(
        fit_workload(profiles()["capped"]), source=MeasurementSource("paper '24", 26, 0.0123, 0.0456)
    )
    after = reload_coefficients(workload)
    assert after.source == workload.source
    assert dict(after.measured) == dict(workload.measured)
    with pytest.raises(OutOfRange, match="cap_w is 40: made-up on a100 was measured from 100 to 400"):
        after.predict(Settings.of(cap_w=40))


def test_models_go_through_a_file_in_their_order(tmp_path: Path) -> None:
    profile = profiles()["scaled"]
    models = fit(
        join_profiles(
            rename_model(profile, "b"), rename_model(profile, "a"), rename_model(profile, "b", "v100")
        )
    )
    write_models(models, tmp_path / "models.toml")
    loaded = load_models(tmp_path / "models.toml")
    assert [(w.model, w.gpu) for w in loaded.workloads] == [("b", "a100"), ("a", "a100"), ("b", "v100")]
    assert loaded.predict("b", "V100", gpus=4, batch=128).samples_s == pytest.approx(
        models.predict("b", "V100", gpus=4, batch=128).samples_s, rel=0.005
    )


def test_no_models_at_all_go_through_a_file(tmp_path: Path) -> None:
    write_models(WorkloadModels(()), tmp_path / "models.toml")
    assert load_models(tmp_path / "models.toml").workloads == ()


@pytest.mark.parametrize("name", ['say "hi"', "back\\slash", "ümläut/名前", "tab\tbed", "#1"])
def test_any_name_is_preserved(name: str) -> None:
    workload = replace(build_workload(), model=name, source=MeasurementSource(name))
    after = reload_coefficients(workload)
    assert (after.model, after.source.name) == (name, name)


def test_the_file_is_made_of_lines_that_people_can_read() -> None:
    text = format_models([fit_workload(profiles()["scaled"])])
    entry = tomllib.loads(text)["workload"][0]
    assert (entry["model"], entry["gpu"], entry["points"]) == ("made-up", "a100", 7)
    assert entry["measured"] == {"gpus": [1, 16], "nodes": [1, 2], "batch": [16, 32]}
    assert all(value > 0 for value in entry["speed"].values())
    assert max(len(line) for line in text.splitlines()) < 110


def test_what_was_learnt_is_written_too() -> None:
    before = fit_workload(profiles()["scaled"])
    rows = Settings.of(gpus=8, nodes=2, batch=256)
    learnt = before.observe(
        rows, 0.5 * before.extrapolate(rows).samples_s, 1.3 * before.extrapolate(rows).watts
    )
    after = reload_coefficients(learnt)
    assert max_relative_error(after.extrapolate(rows).samples_s, learnt.extrapolate(rows).samples_s) < 0.005
    assert max_relative_error(after.extrapolate(rows).watts, learnt.extrapolate(rows).watts) < 0.005


ENTRY = '[[workload]]\nmodel = "m"\ngpu = "t4"\n'


@pytest.mark.parametrize(
    "text",
    {
        "no TOML": "not toml at all",
        "empty": "",
        "another word": "workloads = []",
        "a number": "workload = 3",
        "a list of words": 'workload = ["x"]',
        "no GPU": '[[workload]]\nmodel = "m"\n',
        "an unknown coefficient": ENTRY + "speed.nonsense = 3",
        "a coefficient that is a word": ENTRY + 'wait = "long"',
        "ranges without names": ENTRY + "measured = [1, 2]",
        "curves without a range": ENTRY + "cap_w.batch = [8]\ncap_w.rate = [[1, 1, 1, 2, 1]]",
        "curves of too few numbers": ENTRY
        + "measured.cap_w = [1, 2]\ncap_w.batch = [8]\ncap_w.rate = [[1, 2]]",
    }.items(),
    ids=lambda item: item[0],
)
def test_a_file_of_another_format_is_refused_by_name(tmp_path: Path, text: tuple[str, str]) -> None:
    path = tmp_path / "models.toml"
    path.write_text(text[1])
    with pytest.raises(ConfigError, match=r"models\.toml: is not a file of fitted models"):
        load_models(path)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        load_models(tmp_path / "none.toml")
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"odd\.toml: cannot be read: "):
        load_models(tmp_path / "odd.toml")


def test_everything_that_comes_with_the_package_makes_sense() -> None:
    for workload in library().workloads:
        settings = Settings.of(
            gpus=[1, 2], batch=[1, 2] if np.isnan(workload.usual_batch) else workload.usual_batch
        )
        samples_s, watts = workload.extrapolate(settings)
        assert (samples_s > 0).all(), workload
        assert np.isfinite(samples_s).all(), workload
        assert not (watts <= 0).any(), workload
        assert (
            library().find(f"{workload.source.name}/{workload.model}", workload.gpu).model == workload.model
        )
    assert library() is library()
