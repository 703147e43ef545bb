"""Every meter fulfils the contract."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.nvml_stub import NvmlStub
from wattline.meter import Meter, open_meter
from wattline.testing import MeterContract


class TestSimulated(MeterContract):
    exact = True

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self) -> Meter:
        return open_meter(f"simulated:2xv100,model=resnet50,batch=128,time=virtual,state={self.folder}")


class TestSimulatedInRealTime(TestSimulated):
    exact = False
    samples = 1.0

    def make(self) -> Meter:
        return open_meter(f"simulated:1xa40,model=resnet50,state={self.folder}")


class TestReplay(MeterContract):
    sets = False

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.file = tmp_path / "readings.csv"
        rows = (f"{at},{gpu},{100 + 10 * gpu},{100 * at + gpu},250" for at in range(40) for gpu in (0, 1))
        self.file.write_text("\n".join(("at_s,gpu,power_w,energy_j,cap_w", *rows)))

    def make(self) -> Meter:
        return open_meter(f"replay:{self.file},time=virtual")


@pytest.mark.slow
def test_nvml_fulfils_the_contract_with_the_real_bindings(stub: NvmlStub, tmp_path: Path) -> None:
    """Runs in a new process, since the library path is read when a process starts."""
    contract = tmp_path / "test_nvml_contract.py"
    contract.write_text(
        "from wattline.meter import open_meter\n"
        "from wattline.testing import MeterContract\n"
        "class TestNvml(MeterContract):\n"
        "    def make(self):\n"
        "        return open_meter('nvml')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, str(contract)], env=stub.env(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout
