"""The folder of a job's attempt: orders of the service, and whether a newer attempt exists."""

from __future__ import annotations

import json
import os
from pathlib import Path

ORDERS = "orders.json"
"""Settings that change while the job runs: {"cap_w": watts per GPU, 0 for none}."""


class AttemptWatch:
    """Reads the folder of this process' attempt, named by its number; None: it has none.

    The service starts an attempt only when the one before is over or its node is lost. A process that finds a
    newer attempt is one that was left behind on a node that came back: it must not save.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder if folder is not None and folder.name.isdecimal() else None
        self._read_at: tuple[int, int] | None = None

    def is_superseded(self) -> bool:
        """Return whether the service has started a newer attempt at this job."""
        if self._folder is None:
            return False
        try:
            names = os.listdir(self._folder.parent)
        except OSError:
            return False
        own = int(self._folder.name)
        return any(int(name) > own for name in names if name.isdecimal())

    def read_cap_w(self) -> float | None:
        """Return the power limit of new orders; 0: none is to be set; None: there are no new orders."""
        if self._folder is None:
            return None
        try:
            with open(self._folder / ORDERS, encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                version = status.st_ino, status.st_mtime_ns
                if version == self._read_at:
                    return None
                self._read_at = version
                return max(float(json.load(file)["cap_w"]), 0.0)
        except (OSError, ValueError, KeyError, TypeError):
            return None
