"""`wattline predict` as a user types it."""

import json
from pathlib import Path

import pytest

from support.command_line import run_command, run_json_command
from support.small_profiles import build_cap_profile, build_scaling_profile, write_csv
from wattline.cli import main


@pytest.fixture
def resnet(tmp_path: Path) -> list[str]:
    return ["--profile", write_csv(build_cap_profile(), tmp_path), "--model", "ResNet-50", "--gpu", "A40"]


@pytest.fixture
def bert(tmp_path: Path) -> list[str]:
    return ["--profile", write_csv(build_scaling_profile(), tmp_path), "--model", "bert", "--gpu", "a100"]


def test_predict_prints_these_keys_as_json(capsys: pytest.CaptureFixture[str], resnet: list[str]) -> None:
    found = run_json_command(capsys, "predict", *resnet, "--cap", "150W", "--batch", "64")
    assert (found["model"], found["gpu"], found["source"]) == ("resnet50", "a40", "mine")
    assert found["settings"] == {
        "gpus": 1,
        "nodes": 1,
        "batch": 64,
        "cap_w": 150,
        "clock_mhz": None,
        "cpus": None,
        "mem_gib": None,
        "read_mib_s": None,
        "fuse": 1,
    }
    assert found["joules_per_sample"] == pytest.approx(found["watts"] / found["samples_s"])
    assert set(found["uncapped"]) == {"samples_s", "watts", "joules_per_sample"}
    assert set(found["held_out"]) == {"samples_error", "watts_error"}
    assert found["watts_measured"] is True


def test_predict_is_near_what_was_measured(capsys: pytest.CaptureFixture[str], resnet: list[str]) -> None:
    found = run_json_command(capsys, "predict", *resnet, "--cap", "150W", "--batch", "64")
    full = 64 / (0.01 + 0.003 * 64)
    assert found["watts"] == pytest.approx(150, rel=0.05)
    assert found["samples_s"] == pytest.approx(0.76 * full, rel=0.05)
    assert found["uncapped"]["watts"] == pytest.approx(250, rel=0.05)
    assert found["uncapped"]["samples_s"] == pytest.approx(full, rel=0.05)


@pytest.mark.slow
def test_a_cap_is_read_in_any_unit(capsys: pytest.CaptureFixture[str], resnet: list[str]) -> None:
    answers = [
        run_json_command(capsys, "predict", *resnet, "--cap", text) for text in ("150W", "150", "0.15kW")
    ]
    assert answers[0] == answers[1] == answers[2]
    answers = [
        run_json_command(capsys, "predict", *resnet, "--clock", text)
        for text in ("1200MHz", "1200", "1.2GHz")
    ]
    assert answers[0] == answers[1] == answers[2]


def test_predict_prints_cost_and_saving_of_a_cap(
    capsys: pytest.CaptureFixture[str], resnet: list[str]
) -> None:
    code, out, err = run_command(capsys, "predict", *resnet, "--cap", "150W", "--batch", "64")
    assert (code, err) == (0, "")
    assert out.startswith("resnet50 on a40: 1 GPU on 1 node, batch 64, cap 150 W\n")
    assert "as set  unlimited" in out
    assert "longer, saves" in out
    assert "watts were measured for this workload" in out
    assert "fitted to 15 points of mine; held out: samples/s" in out


@pytest.mark.slow
def test_without_cap_and_clock_there_is_nothing_to_compare_with(
    capsys: pytest.CaptureFixture[str], resnet: list[str]
) -> None:
    _, out, _ = run_command(capsys, "predict", *resnet)
    assert "unlimited" not in out
    assert "longer" not in out
    found = run_json_command(capsys, "predict", *resnet)
    assert found["settings"]["batch"] == 64  # the usual one
    assert found["uncapped"]["samples_s"] == found["samples_s"]


def test_predict_prints_that_watts_are_assumed(capsys: pytest.CaptureFixture[str], bert: list[str]) -> None:
    _, out, _ = run_command(capsys, "predict", *bert, "--gpus", "4", "--batch", "64", "--cap", "250W")
    assert "watts were not measured: assumed the device's" in out
    assert "caps were not measured: assumed" in out
    found = run_json_command(capsys, "predict", *bert, "--gpus", "4", "--batch", "64", "--cap", "250W")
    assert found["watts_measured"] is False
    assert found["held_out"]["watts_error"] is None
    assert {"watts", "cap_w"} <= set(found["assumed"])


def test_unpredictable_watts_are_unknown_and_not_0(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [
        "--profile",
        write_csv(build_scaling_profile(gpu="tpu9"), tmp_path),
        "--model",
        "bert",
        "--gpu",
        "tpu9",
    ]
    found = run_json_command(capsys, "predict", *words)
    assert found["samples_s"] > 0
    assert (found["watts"], found["joules_per_sample"]) == (None, None)
    assert "watts of the GPUs   unknown" in run_command(capsys, "predict", *words)[1]


@pytest.mark.slow
def test_models_from_a_file_predict_what_their_profile_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, resnet: list[str]
) -> None:
    models = str(tmp_path / "mine.toml")
    main(["fit", resnet[1], "--out", models])
    capsys.readouterr()
    asked = ["--cap", "150W", "--batch", "64"]
    loaded = run_json_command(capsys, "predict", "--models", models, *resnet[2:], *asked)
    fitted = run_json_command(capsys, "predict", *resnet, *asked)
    for name in ("samples_s", "watts"):
        assert loaded[name] == pytest.approx(fitted[name], rel=0.05)


def test_every_knob_can_be_set(capsys: pytest.CaptureFixture[str], bert: list[str]) -> None:
    words = ["--gpus", "8", "--nodes", "2", "--batch", "128", "--cpus", "32", "--mem", "64G", "--fuse", "2"]
    found = run_json_command(capsys, "predict", *bert, *words)
    assert found["settings"]["mem_gib"] == 64
    assert set(found["assumed"]) == {"nodes", "watts", "wait", "demand", "array"}
    _, out, _ = run_command(capsys, "predict", *bert, *words)
    assert "8 GPUs on 2 nodes, batch 128, 32 cores, 64 GiB, 2 jobs as one array" in out


def test_a_cap_that_the_device_does_not_support_causes_a_warning(
    capsys: pytest.CaptureFixture[str], resnet: list[str]
) -> None:
    code, out, err = run_command(capsys, "predict", *resnet, "--cap", "60W", "--json")
    assert code == 0
    assert json.loads(out)["settings"]["cap_w"] == 60
    assert "warning: a40 supports caps from 100 to 300 W only, not 60" in err


@pytest.mark.parametrize(
    ("words", "status", "code", "message", "hint"),
    [
        (["--cap", "20W"], 1, "out_of_range", "cap_w is 20", ""),
        (["--batch", "8192"], 1, "out_of_range", "batch is 8192 per GPU", ""),
        (["--gpu", "h100"], 3, "not_fitted", "was not measured on 'h100', only on a40", ""),
        (["--model", "resnet5"], 3, "not_fitted", "nothing was measured of 'resnet5'", "did you mean"),
        (["--cap", "lots"], 2, "bad_config", "'lots' is not a power", "predict --help"),
        (["--clock", "1.2THz"], 2, "bad_config", "'1.2THz' is not a clock", "predict --help"),
        (["--cap", "0W"], 2, "bad_config", "cap_w is 0", ""),
        (["--nodes", "2"], 2, "bad_config", "nodes is 2, expected at most the number of GPUs, 1", ""),
        (["--models", "x.toml"], 2, "bad_config", "not allowed with", "predict --help"),
    ],
)
def test_what_cannot_be_predicted_is_explained(
    capsys: pytest.CaptureFixture[str],
    resnet: list[str],
    words: list[str],
    status: int,
    code: str,
    message: str,
    hint: str,
) -> None:
    found, out, _ = run_command(capsys, "predict", *resnet, *words, "--json")
    error = json.loads(out)["error"]
    assert (found, error["code"]) == (status, code)
    assert message in error["message"]
    assert hint in error["hint"]


def test_a_file_without_models_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("not = [toml")
    for name, why in (("x.toml", "is not a file of fitted models"), ("y.toml", "cannot be read")):
        code, out, err = run_command(
            capsys, "predict", "--models", str(tmp_path / name), "--model", "m", "--gpu", "t4"
        )
        assert (code, out) == (2, "")
        assert why in err


@pytest.mark.slow
def test_predict_names_the_best_cap_of_a_sweep_and_its_reason(
    capsys: pytest.CaptureFixture[str], resnet: list[str]
) -> None:
    found = run_json_command(capsys, "predict", *resnet, "--batch", "64", "--aim", "energy")
    best = found["best"]["cap_w"]
    assert best["measured"] is (best["value"] == best["best_measured"])
    assert best["measured"] or best["gain"] > best["error"]
    _, text, _ = run_command(capsys, "predict", *resnet, "--batch", "64", "--aim", "time")
    assert "best by time: cap 250 W, measured" in text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--model", "resnet50", "--gpu", "v100", "--aim", "energy"], "--aim needs the measured caps"),
        (["--aim", "slowdown:1.1"], "expected energy, time or cost:ETA"),
        (["--aim", "cheap"], "aim is 'cheap'"),
        (["--aim", "energy", "--gpus", "2"], "has no caps or clocks of resnet50 on a40"),
    ],
)
def test_an_aim_that_cannot_be_answered_is_explained(
    capsys: pytest.CaptureFixture[str], resnet: list[str], options: list[str], problem: str
) -> None:
    words = options if "--model" in options else [*resnet, *options]
    assert main(["predict", *words]) == 2
    assert problem in capsys.readouterr().err
