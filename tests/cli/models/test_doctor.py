"""`wattline doctor` as a user types it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from support.command_line import run_command, run_json_command
from support.nvml_stub import UUIDS, NvmlStub, compile_stub
from wattline.meter import open_meter
from wattline.meter.caps.guard import guard_caps
from wattline.meter.caps.process_identity import identify_current_process
from wattline.meter.caps.record import CapRecord, write_record


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("WATTLINE_STATE", str(folder))
    monkeypatch.delenv("WATTLINE_METER", raising=False)
    return folder


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return f"simulated:2xv100,time=virtual,state={tmp_path / 'gpus'}"


def test_doctor_prints_these_keys_as_json(capsys: pytest.CaptureFixture[str], spec: str) -> None:
    found = run_json_command(capsys, "doctor", "--meter", spec)
    assert set(found) == {
        "meter",
        "meters",
        "gpus",
        "left_behind",
        "held",
        "tools",
        "cgroup",
        "packages",
        "state",
    }
    assert [meter["name"] for meter in found["meters"]] == ["nvml", "rapl", "zeusd"]
    assert all(meter["works"] or meter["says"] for meter in found["meters"])
    gpu = found["gpus"][0]
    assert (gpu["kind"], gpu["cap_w"], gpu["least_cap_w"], gpu["most_cap_w"]) == ("v100", 300, 100, 300)
    assert (gpu["caps"], gpu["clocks"], gpu["power_w"]) == (True, None, 40)


def test_doctor_changes_no_cap(capsys: pytest.CaptureFixture[str], spec: str) -> None:
    meter = open_meter(spec)
    meter.gpus[0].set_cap(177)
    assert run_json_command(capsys, "doctor", "--meter", spec)["gpus"][0]["cap_w"] == 177
    assert meter.gpus[0].cap_w() == 177
    meter.close()


def test_doctor_prints_why_caps_cannot_be_set(capsys: pytest.CaptureFixture[str], spec: str) -> None:
    code, out, _ = run_command(capsys, "doctor", "--meter", f"{spec},denied=yes")
    assert code == 0
    assert "caps and clocks cannot be set: simulated v100 refuses" in out
    assert run_json_command(capsys, "doctor", "--meter", f"{spec},denied=yes")["gpus"][0]["caps"] is False


def test_doctor_without_gpus_says_unmetered(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "doctor", "--meter", "none")
    assert code == 0
    assert "energy is unmetered" in out


def test_caps_left_behind_are_restored_and_reported(
    capsys: pytest.CaptureFixture[str], spec: str, state: Path
) -> None:
    meter = open_meter(spec)
    dead = replace(identify_current_process(), started=1)
    state.mkdir()
    for gpu, cap_w in zip(meter.gpus, (150, 200), strict=True):
        gpu.set_cap(150)
        write_record(state, CapRecord(gpu.uuid, spec, 300, (cap_w,), dead), durable=True)
    write_record(state, CapRecord("GPU-gone", "nvml:GPU-gone", 300, (150,), dead), durable=True)
    _, out, _ = run_command(capsys, "doctor", "--meter", spec)
    assert [gpu.cap_w() for gpu in meter.gpus] == [300, 150]
    assert "left a cap behind: restored to 300 W" in out
    assert "changed since, left alone" in out
    assert "GPU-gone" in out
    assert "could not be restored" in out
    meter.close()


def test_doctor_names_the_process_that_holds_a_cap(capsys: pytest.CaptureFixture[str], spec: str) -> None:
    meter = open_meter(spec)
    with guard_caps(meter.gpus[:1], 150):
        found = run_json_command(capsys, "doctor", "--meter", spec)
        assert [(one["pid"], one["set_w"], one["lives"]) for one in found["held"]] == [
            (os.getpid(), 150, True)
        ]
        assert [gpu["caps"] for gpu in found["gpus"]] == [False, True]
        assert "holds its cap at 150 W" in run_command(capsys, "doctor", "--meter", spec)[1]
    meter.close()


@pytest.mark.slow
def test_on_nvml_the_driver_and_its_gpus_are_shown(tmp_path: Path) -> None:
    stub = NvmlStub(tmp_path / "nvml.bin", compile_stub(tmp_path))
    stub["denied", 1] = 1
    printed = stub.run("from wattline.cli import main\nmain(['doctor', '--json'])")
    found = json.loads(printed)
    assert found["meters"][0] == {
        "name": "nvml",
        "works": True,
        "says": "2 GPUs, driver stub 1.0",
        "hint": "",
    }
    assert [(gpu["uuid"], gpu["kind"], gpu["caps"]) for gpu in found["gpus"]] == [
        (UUIDS[0], "a100", True),
        (UUIDS[1], "a100", False),
    ]
    assert "administrator" in found["gpus"][1]["why"]
    assert stub["cap_mw", 0] == 400_000
