"""CPU energy counters, read from a copy of the kernel's folder layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattline.errors import ConfigError, MeterError, NotPermitted
from wattline.meter import open_meter
from wattline.meter.drivers.rapl import RaplMeter


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "powercap"
    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:1": "package-1",
        "intel-rapl:2": "psys",
    }
    for folder, name in zones.items():
        zone = root / folder
        zone.mkdir(parents=True)
        (zone / "name").write_text(f"{name}\n")
        (zone / "energy_uj").write_text("5000000\n")
        (zone / "max_energy_range_uj").write_text("10000000\n")
    (root / "intel-rapl").mkdir()
    return root


def test_packages_and_their_memory_are_counted_once(tree: Path) -> None:
    meter = open_meter(f"rapl:{tree}")
    assert [gpu.name for gpu in meter.gpus] == ["CPU package 0", "memory of CPU package 0", "CPU package 1"]
    assert all("CPU, not GPU" in gpu.method for gpu in meter.gpus)
    assert all(gpu.kind == "" for gpu in meter.gpus)
    meter.close()


def test_energy_continues_when_the_counter_wraps(tree: Path) -> None:
    meter = RaplMeter(tree)
    cpu, file = meter.gpus[0], tree / "intel-rapl:0" / "energy_uj"
    readings = []
    for microjoules in (9_000_000, 1_000_000, 9_500_000, 500_000):
        file.write_text(str(microjoules))
        readings.append(cpu.energy_j())
    assert readings == [9, 11, 19.5, 20.5]
    meter.close()


def test_power_is_the_mean_since_the_last_reading(tree: Path) -> None:
    meter = RaplMeter(tree)
    (tree / "intel-rapl:0" / "energy_uj").write_text("6000000")
    assert meter.gpus[0].power_w() > 0
    assert meter.gpus[0].power_w() >= 0
    meter.close()


def test_caps_and_clocks_of_cpus_are_refused(tree: Path) -> None:
    meter = RaplMeter(tree)
    for refused in (
        lambda: meter.gpus[0].set_cap(50),
        lambda: meter.gpus[0].lock_clock(1000),
        meter.gpus[0].cap_w,
    ):
        with pytest.raises(NotPermitted, match="is a CPU"):
            refused()
    meter.close()


def test_missing_and_broken_counters_are_errors(tmp_path: Path, tree: Path) -> None:
    with pytest.raises(MeterError, match="no RAPL counters"):
        RaplMeter(tmp_path)
    with pytest.raises(ConfigError, match="expected nothing, or a folder"):
        open_meter("rapl:/no/such/folder")
    (tree / "intel-rapl:0" / "energy_uj").write_text("")
    with pytest.raises(MeterError, match="cannot be read"):
        RaplMeter(tree)


def test_without_permission_to_read_the_error_names_root(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path, *args: object) -> str:
        if self.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(self))
        return original(self)

    original = Path.read_text
    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(NotPermitted, match="only be read by root"):
        RaplMeter(tree)
