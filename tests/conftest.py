"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data() -> Path:
    """The public traces and measurements; tests that need them skip where they are missing."""
    root = Path(os.environ.get("WATTLINE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not root.is_dir():
        pytest.skip(f"needs the public data in WATTLINE_DATA, and {root} is missing")
    return root
