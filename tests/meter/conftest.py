"""Fixtures of the meter tests: a stub of NVML, and a state folder per test."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.nvml_stub import NvmlStub, compile_stub


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the NVML stub, and return its folder."""
    return compile_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def stub(tmp_path: Path, library: Path) -> NvmlStub:
    """Return a stub of NVML with two GPUs."""
    return NvmlStub(tmp_path / "nvml.bin", library)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a folder of cap records that no other test and no user has."""
    monkeypatch.setattr("wattline.meter.caps.guard._reported", set())  # warnings of earlier tests
    folder = tmp_path / "state"
    monkeypatch.setenv("WATTLINE_STATE", str(folder))
    monkeypatch.delenv("WATTLINE_METER", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder
