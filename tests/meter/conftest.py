"""GPUs to try meters on: simulated ones, and a stub of NVML."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.nvml_stub import NvmlStub, compile_stub


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stub that was compiled for these tests."""
    return compile_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def stub(tmp_path: Path, library: Path) -> NvmlStub:
    """Two GPUs behind NVML's names."""
    return NvmlStub(tmp_path / "nvml.bin", library)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where caps are remembered: nowhere that another test or a person looks at."""
    monkeypatch.setattr("wattline.meter.caps.guard._told", set())  # what this process has said before
    folder = tmp_path / "state"
    monkeypatch.setenv("WATTLINE_STATE", str(folder))
    monkeypatch.delenv("WATTLINE_METER", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder
