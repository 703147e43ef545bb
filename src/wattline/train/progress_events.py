"""What a job tells who watches it: a line of JSON for each thing that happens."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


class Events:
    """Lines in a file, or in a pipe that somebody reads; without a path nobody watches.

    A job does not wait for who watches it, and does not end because nothing can be written.
    """

    def __init__(self, path: Path | None, job: str, tell: Callable[[str], None]) -> None:
        self._path, self._job, self._tell = path, job, tell

    def say(self, event: str, words: dict[str, Any]) -> None:
        """Write one line."""
        if self._path is None:
            return
        said = {"at": time.time(), "job": self._job, "event": event, **words}
        line = json.dumps({name: _plain(value) for name, value in said.items()}) + "\n"
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
        except OSError as error:
            self._tell(f"nobody is told of progress: {self._path}: {error.strerror}")
            return
        with suppress(OSError):
            os.write(file, line.encode())
        os.close(file)


def _plain(value: Any) -> Any:
    """*value*, or None where JSON has no such number."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
