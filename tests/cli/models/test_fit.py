"""`wattline fit` as a user types it."""

from pathlib import Path

import numpy as np
import pytest

from support.command_line import parse_strict_json
from support.small_profiles import build_cap_profile, build_scaling_profile, write_csv
from wattline import Profile
from wattline.cli import main
from wattline.models.library import load_models


def fit(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    assert main(["fit", *words]) == 0
    out, err = capsys.readouterr()
    return out, err


def test_fit_prints_strict_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, err = fit(capsys, write_csv(build_cap_profile(), tmp_path), "--json")
    (found,) = parse_strict_json(out)["workloads"]
    assert err == ""
    assert (found["model"], found["gpu"], found["points"]) == ("resnet50", "a40", 15)
    assert set(found["held_out"]) == {"samples_error", "samples_worst", "watts_error", "watts_worst"}
    assert 0 < found["held_out"]["samples_error"] <= found["held_out"]["samples_worst"] < 0.2
    assert found["measured"] == {"cap_w": [100, 300], "batch": [32, 128]}
    assert found["parameters"]["speed"]["sample_s"] > 0
    assert [law["batch"] for law in found["parameters"]["cap_w"]] == [32, 64, 128]
    assert set(found["parameters"]["cap_w"][0]["watts"]) == {"low", "slope", "start", "end", "soft"}
    assert found["parameters"]["clock_mhz"] == []
    assert found["watts_measured"]


def test_fit_prints_measured_and_assumed_parts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, err = fit(capsys, write_csv(build_cap_profile(), tmp_path))
    assert err == ""
    assert "resnet50 on a40 (mine): 15 points" in out
    assert "off on average" in out
    assert "varied    cap 100 to 300 W, batch 32 to 128 per GPU" in out
    assert "clock     not measured: assumed 30 % of a step ignores the clock" in out
    assert "array     not measured: assumed each further job of an array adds 65 % of a step" in out


def test_fit_prints_the_watts_it_assumes_if_none_were_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, _ = fit(capsys, write_csv(build_scaling_profile(), tmp_path))
    assert "watts     not measured: assumed the device's" in out
    assert "and synchronises 10 ms for a second GPU + 2 ms for each further one" in out
    found = parse_strict_json(
        fit(capsys, write_csv(build_scaling_profile(gpu="tpu9"), tmp_path), "--json")[0]
    )["workloads"][0]
    assert not found["watts_measured"]
    assert "unknown" in found["assumed"]["watts"]
    assert found["held_out"]["watts_error"] is None


def test_two_points_are_too_few_to_leave_any_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_csv(Profile.of(model="m", gpu="t4", batch=[8, 16], samples_s=[80, 120]), tmp_path)
    assert "too few points to leave any out" in fit(capsys, path)[0]
    held = parse_strict_json(fit(capsys, path, "--json")[0])["workloads"][0]["held_out"]
    assert set(held.values()) == {None}


def test_measured_clocks_demand_waiting_and_arrays_are_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    clocks = np.array([600.0, 800.0, 1000.0, 1200.0, 1400.0])
    profile = Profile.of(
        model="m",
        gpu="a100",
        batch=32,
        clock_mhz=[*clocks, *[np.nan] * 6],
        cpus=[*[np.nan] * 5, 1, 2, 4, 8, np.nan, np.nan],
        gpus=[1] * 9 + [1, 4],
        fuse=[1] * 9 + [4, 1],
        samples_s=[*(clocks / 14), 20, 40, 80, 100, 200, 380],
        watts=[*(clocks / 4), *[np.nan] * 5, 1300],
        peak_gib=[*[4] * 9, 13, 4],
    )
    out, _ = fit(capsys, write_csv(profile, tmp_path))
    assert "watts still  watts per_mhz  watts knee" in out
    assert "a sample is prepared in" in out
    assert "memory of a GPU: 1 GiB + 3 GiB for each job" in out
    assert "array     each further job of an array adds" in out


@pytest.mark.slow
def test_models_that_were_written_can_be_read_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, err = fit(
        capsys, write_csv(build_cap_profile(), tmp_path), "--json", "--out", str(tmp_path / "mine.toml")
    )
    assert f"models: {tmp_path / 'mine.toml'}" in err
    (again,) = load_models(tmp_path / "mine.toml").workloads
    assert (again.model, again.gpu, again.source.name, again.source.points) == ("resnet50", "a40", "mine", 15)
    held = parse_strict_json(out)["workloads"][0]["held_out"]
    assert held["samples_error"] > 0  # of the model with its corrections, which a file does not have
    assert 0 < again.source.samples_error < 0.1


@pytest.mark.slow
def test_a_page_is_written_beside_the_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "new" / "fit.html"
    out, err = fit(capsys, write_csv(build_cap_profile(), tmp_path), "--json", "--html", str(page))
    assert parse_strict_json(out)["workloads"]
    assert f"page: {page}" in err
    assert 'data-figure="fit-0-cap_w"' in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "status", "code", "message"),
    [
        ("model,gpu,samples_s\nm,a100,5\n", 1, "not_fitted", "expected at least 2 different settings"),
        ("model,gpu,batch,samples_s\nm,a100,8,-5\n", 2, "bad_profile", "mine.csv:2: samples_s is -5"),
        ("model,gpu,sample_s\nm,a100,5\n", 2, "bad_profile", "unknown column 'sample_s'"),
    ],
)
def test_a_profile_that_cannot_be_fitted_is_explained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, status: int, code: str, message: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    assert main(["fit", str(path), "--json", "--out", str(tmp_path / "x.toml")]) == status
    error = parse_strict_json(capsys.readouterr().out)["error"]
    assert error["code"] == code
    assert message in error["message"]
    assert not (tmp_path / "x.toml").exists()


@pytest.mark.parametrize("flag", ["--out", "--html"])
def test_measurements_are_never_overwritten(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str
) -> None:
    path = Path(write_csv(build_cap_profile(), tmp_path))
    before = path.read_bytes()
    assert main(["fit", str(path), flag, str(path.parent / "." / path.name)]) == 2
    assert "must be different files" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_contradicting_rows_cause_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    falling = Profile.of(model="m", gpu="v100", cap_w=[100, 150, 200, 250], samples_s=[100, 60, 30, 20])
    out, err = fit(capsys, write_csv(falling, tmp_path), "--json")
    assert "warning: " in err
    assert parse_strict_json(out)["workloads"][0]["contradicted"]


@pytest.mark.slow
def test_fit_states_where_the_law_of_clocks_does_not_fit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    clock = np.arange(600.0, 1401.0, 50.0)
    watts = np.where(clock < 1000.0, 0.6, 1.0) * (100.0 + 0.3 * clock)  # two voltages
    path = tmp_path / "stepped.csv"
    rows = [f"m,a100,1,{c:g},{c / 10:g},{w:g}" for c, w in zip(clock, watts, strict=True)]
    path.write_text("\n".join(("model,gpu,batch,clock_mhz,samples_s,watts", *rows, "")))
    assert main(["fit", str(path), "--out", str(tmp_path / "models.toml")]) == 0
    assert "the clock law does not fit: energy" in capsys.readouterr().out
    assert load_models(tmp_path / "models.toml").workloads[0].source.misfits == ("clock_mhz",)
    assert main(["fit", str(path), "--json"]) == 0
    law = parse_strict_json(capsys.readouterr().out)["workloads"][0]["laws"]["clock_mhz"]
    assert law["fits"] is False
    assert law["settings"] == len(clock)
    words = ["--models", str(tmp_path / "models.toml"), "--model", "m", "--gpu", "a100", "--clock", "900"]
    assert main(["predict", *words]) == 0
    assert "the clock law does not fit the measurements" in capsys.readouterr().out
