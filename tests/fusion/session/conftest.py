"""Fixtures of the session tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.environment import isolate_environment

if TYPE_CHECKING:
    from support.array_jobs import PreparedArray


@pytest.fixture(autouse=True)
def isolated_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of a surrounding job and use a separate state folder."""
    isolate_environment(tmp_path, monkeypatch)
    monkeypatch.setattr(
        "wattline.fusion.session._CANCEL_POLL_S", 0.0
    )  # cancelled members leave at the next step


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreparedArray:
    from support.array_jobs import PreparedArray  # needs PyTorch

    return PreparedArray(tmp_path, monkeypatch, 3)
