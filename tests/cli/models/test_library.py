"""`wattline library` as a user types it."""

import json

import pytest

import wattline.cli.models.library_entries
from support.command_line import run_command, run_json_command
from support.small_profiles import build_cap_profile, build_scaling_profile
from wattline.measurement.devices import DEVICES
from wattline.models.fit import fit
from wattline.models.workload_models import WorkloadModels


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> WorkloadModels:
    """A library of three workloads."""
    parts = (
        fit(profile)
        for profile in (build_cap_profile(), build_cap_profile(gpu="v100"), build_scaling_profile())
    )
    models = WorkloadModels(tuple(w for part in parts for w in part.workloads))
    monkeypatch.setattr(wattline.cli.models.library_entries, "library", lambda: models)
    return models


def test_the_library_that_is_shipped_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json_command(capsys, "library", "list")
    assert {d["name"] for d in found["devices"]} == set(DEVICES)
    for entry in found["workloads"]:
        assert entry["model"]
        assert set(entry["held_out"]) == {"samples_error", "watts_error"}
    assert run_command(capsys, "library", "list")[0] == 0


def test_a_list_has_a_line_for_every_workload_and_every_device(
    capsys: pytest.CaptureFixture[str], small: WorkloadModels
) -> None:
    code, out, err = run_command(capsys, "library", "list")
    workloads, devices = out.split("\n\n")
    assert (code, err) == (0, "")
    assert len(workloads.splitlines()) == 1 + len(small.workloads)
    assert len(devices.splitlines()) == 1 + len(DEVICES)
    bert = workloads.splitlines()[-1].split()
    assert bert[:2] == ["bert", "a100"]
    assert "assumed" in bert
    assert "GPUs 1 to 8" in workloads
    assert "100 to 300 W" in devices


def test_an_empty_library_is_still_a_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wattline.cli.models.library_entries, "library", lambda: WorkloadModels(()))
    assert run_json_command(capsys, "library", "list")["workloads"] == []
    assert run_command(capsys, "library", "list")[1].startswith("model")


def test_a_workload_is_shown_by_any_spelling_of_its_name(
    capsys: pytest.CaptureFixture[str], small: WorkloadModels
) -> None:
    for name in ("resnet50", "ResNet-50", "/resnet_50"):
        found = run_json_command(capsys, "library", "show", name)["workloads"]
        assert [w["gpu"] for w in found] == ["a40", "v100"]
        assert len(found[0]["parameters"]["cap_w"]) == 3
    assert [
        w["gpu"]
        for w in run_json_command(capsys, "library", "show", "resnet50", "--gpu", "V100")["workloads"]
    ] == ["v100"]
    _, out, _ = run_command(capsys, "library", "show", "resnet50", "--gpu", "v100")
    assert out.startswith("resnet50 on v100: 15 points\n")
    assert "rate low  rate slope" in out


def test_a_device_is_shown_by_its_name(capsys: pytest.CaptureFixture[str], small: WorkloadModels) -> None:
    (found,) = run_json_command(capsys, "library", "show", "A40")["devices"]
    assert (found["name"], found["max_cap_w"]) == ("a40", DEVICES["a40"].max_cap_w)
    _, out, _ = run_command(capsys, "library", "show", "a40")
    assert out.startswith("a40: ")
    assert f"{DEVICES['a40'].busy_w:g} W, training" in out


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["resnet51"], "'resnet51' is neither a workload", "did you mean resnet50?"),
        (["a41"], "'a41' is neither a workload", "did you mean a40?"),
        (["??"], "'??' is neither a workload", "wattline library list"),
        (["resnet50", "--gpu", "v10"], "not measured on 'v10', only on a40, v100", "did you mean v100?"),
        (["a40", "--gpu", "a40"], "a40 was not measured on 'a40'", ""),
    ],
)
def test_an_unknown_name_is_exit_code_3(
    capsys: pytest.CaptureFixture[str], small: WorkloadModels, words: list[str], message: str, hint: str
) -> None:
    code, out, err = run_command(capsys, "library", "show", *words)
    assert (code, out) == (3, "")
    assert message in err
    code, out, err = run_command(capsys, "library", "show", *words, "--json")
    assert (code, err) == (3, "")
    error = json.loads(out)["error"]
    assert (error["code"], error["hint"]) == ("not_found", hint)


def test_library_without_an_action_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "library", "--json")
    assert code == 2
    assert json.loads(out)["error"]["code"] == "bad_config"
