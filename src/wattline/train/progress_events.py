"""Progress events of a job: one line of JSON per event, for the service or any other reader."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


class EventWriter:
    """Writes events as lines to a file or a named pipe; without a path it does nothing.

    The job never waits for a reader, and does not fail if an event cannot be written.
    """

    def __init__(self, path: Path | None, job: str, warn: Callable[[str], None]) -> None:
        self._path, self._job, self._warn = path, job, warn

    def write(self, event: str, fields: dict[str, Any]) -> None:
        """Write one event with time and job id."""
        if self._path is None:
            return
        all_fields = {"at": time.time(), "job": self._job, "event": event, **fields}
        line = json.dumps({name: _to_json(value) for name, value in all_fields.items()}) + "\n"
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
        except OSError as error:
            self._warn(f"progress events cannot be written to {self._path}: {error.strerror}")
            return
        with suppress(OSError):
            os.write(file, line.encode())
        os.close(file)


def _to_json(value: Any) -> Any:
    """Return *value* with None for numbers that JSON does not have (nan and infinity)."""
    if isinstance(value, dict):
        return {name: _to_json(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
