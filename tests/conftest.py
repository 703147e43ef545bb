"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

import wattline.loop.run
import wattline.reports  # noqa: F401  both compile their loops now, before any test looks at what a command prints

# PyTorch's threads of several test processes would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples every time; `make check` takes few, `make test` many.
settings.register_profile("check", max_examples=5, derandomize=True, deadline=None)
settings.register_profile("test", max_examples=40, derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "check"))


@pytest.fixture(scope="session")
def data() -> Path:
    """The public traces and measurements; tests that need them skip where they are missing."""
    root = Path(os.environ.get("WATTLINE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not root.is_dir():
        pytest.skip(f"needs the public data in WATTLINE_DATA, and {root} is missing")
    return root
