from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_trace_logs() -> Iterator[None]:
    """Keep PyTorch's structured trace away from pytest's log capture, which doubles the time of tracing."""
    log = logging.getLogger("torch.__trace")
    before = log.propagate
    log.propagate = False
    yield
    log.propagate = before


@pytest.fixture(autouse=True, scope="session")
def no_compile_cache() -> Iterator[None]:
    """Compile anew in every test, except for those of the cache, and leave the user's cache alone."""
    before = os.environ.get("WATTLINE_CACHE_DIR")
    os.environ["WATTLINE_CACHE_DIR"] = ""
    yield
    if before is None:
        del os.environ["WATTLINE_CACHE_DIR"]
    else:
        os.environ["WATTLINE_CACHE_DIR"] = before
