from __future__ import annotations

import logging
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
