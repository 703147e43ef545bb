"""Fixtures of the session tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.array_jobs import PreparedArray


@pytest.fixture(autouse=True)
def isolated_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of a surrounding job and use a separate state folder."""
    for name in [name for name in os.environ if name.startswith("WATTLINE_") and name != "WATTLINE_DATA"]:
        monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WATTLINE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("wattline.meter.caps.guard._reported", set())
    monkeypatch.setattr(
        "wattline.fusion.session._CANCEL_POLL_S", 0.0
    )  # cancelled members leave at the next step


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreparedArray:
    from support.array_jobs import PreparedArray  # needs PyTorch

    return PreparedArray(tmp_path, monkeypatch, 3)
