"""The self-test of GPUs against the stand-in of NVML, in processes of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.nvml_stub import UUIDS, NvmlStub, compile_stub

CALLS_THAT_SET = "nvmlDeviceSetPowerManagementLimit"


@pytest.fixture
def stub(tmp_path: Path) -> NvmlStub:
    return NvmlStub(tmp_path / "nvml.bin", compile_stub(tmp_path), count=1)


def run(stub: NvmlStub, *words: str, code: int = 0) -> str:
    """Run `wattline doctor --gpu-selftest` in a new process and return its output."""
    source = str(Path(__file__).parents[2] / "src")
    script = f"from wattline.cli import main\nassert main({['doctor', '--gpu-selftest', *words]!r}) == {code}"
    state = str(stub.path.parent / "state")
    return stub.run(script, PYTHONPATH=source, WATTLINE_STATE=state)


def run_json(stub: NvmlStub, *words: str, code: int = 0) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run(stub, "--json", *words, code=code))
    return report


def test_reading_changes_nothing_and_the_report_names_no_machine(stub: NvmlStub) -> None:
    printed = run(stub)
    assert stub["sets", 0] == 0
    assert "none on hardware: the driver is the stand-in of Wattline's tests" in printed
    assert UUIDS[0] not in printed
    assert "nvmlDeviceGetTotalEnergyConsumption" in printed
    assert "not tried: --set-caps tries it, and sets the cap back" in printed
    assert " 0 fail" in printed


def test_caps_are_set_read_back_and_restored_with_consent(stub: NvmlStub) -> None:
    stub["cap_mw", 0] = 300_000
    report = run_json(stub, "--set-caps", "-y")
    says = [one["says"] for one in report["calls"] if one["call"] == CALLS_THAT_SET]
    assert says == ["set 100 W, read 100 W", "set 250 W, read 250 W", "set 400 W, read 400 W"]
    assert stub["cap_mw", 0] == 300_000
    by_call = {one["call"]: one for one in report["calls"]}
    assert by_call[f"{CALLS_THAT_SET} (out of range)"]["works"]
    assert by_call[f"{CALLS_THAT_SET} (restore)"]["says"] == "300 W, before the test 300 W"
    assert by_call["nvmlDeviceSetGpuLockedClocks"]["works"] is None


def test_what_the_driver_denies_is_a_failure_with_its_reason(stub: NvmlStub) -> None:
    stub["denied", 0] = 1
    report = run_json(stub, "--set-caps", "-y", code=1)
    failed = [one for one in report["calls"] if one["works"] is False]
    assert failed
    assert "needs administrator rights" in failed[0]["says"]
    assert stub["cap_mw", 0] == 400_000


def test_an_implausible_reading_is_a_failure(stub: NvmlStub) -> None:
    for name in ("draw_mw", "cap_mw", "most_mw"):
        stub[name, 0] = 9_000_000
    report = run_json(stub, code=1)
    failed = {one["call"]: one["says"] for one in report["calls"] if one["works"] is False}
    assert failed == {
        "nvmlDeviceGetPowerUsage": "9000.0 W, which is not plausible",
        "nvmlDeviceGetPowerManagementLimitConstraints": "100 to 9000 W, which is not plausible",
    }


def test_every_call_of_the_driver_is_in_the_report(stub: NvmlStub) -> None:
    import re

    from wattline.meter.drivers import nvml

    used = set(re.findall(r"nvml(?:Device|System)\w+", Path(nvml.__file__).read_text()))
    lookups = {name for name in used if "Handle" in name}  # by which the other calls find a GPU
    reported = {one["call"].split(" ")[0] for one in run_json(stub, "--set-caps", "-y")["calls"]}
    assert used - lookups <= reported
