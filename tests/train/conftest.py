"""An environment without the variables of a surrounding job."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.environment import isolate_environment


@pytest.fixture(autouse=True)
def isolated_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of any surrounding job, and use a state folder per test."""
    isolate_environment(tmp_path, monkeypatch)
