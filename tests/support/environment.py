"""An environment without the variables of a surrounding job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def isolate_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of any surrounding job, and keep state in *folder*."""
    for name in [name for name in os.environ if name.startswith("WATTLINE_") and name != "WATTLINE_DATA"]:
        monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WATTLINE_STATE", str(folder / "state"))
    monkeypatch.setattr("wattline.meter.caps.guard._reported", set())  # warnings of earlier tests
