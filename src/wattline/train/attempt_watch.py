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
        self._fences = [] if self._folder is None else [self._folder]
        self._read_at: tuple[int, int] | None = None

    def watch(self, *folders: Path) -> None:
        """Look for newer attempts at other jobs, too: those that this process trains with its own."""
        self._fences += [one for one in folders if one.name.isdecimal() and one not in self._fences]

    def is_superseded(self) -> bool:
        """Return whether the service has started a newer attempt at one of the jobs of this process."""
        return any(_has_newer(folder) for folder in self._fences)

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


def _has_newer(folder: Path) -> bool:
    try:
        names = os.listdir(folder.parent)
    except OSError:
        return False
    return any(int(name) > int(folder.name) for name in names if name.isdecimal())
