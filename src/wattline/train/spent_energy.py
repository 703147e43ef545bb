"""Energy and time of a job up to now, in a file beside its checkpoints.

A process that is killed loses its work since the last checkpoint, but not the energy that this work used. The
file is replaced every second; it is not synced, so that a crash of the machine may lose the last seconds.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from wattline.train.checkpoint import TrainingPosition

_FILE = ".spent.json"  # hidden: it is no checkpoint


class SpentEnergy:
    """The file of one folder of checkpoints; None: there is no folder, and nothing is written."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder.resolve() / _FILE

    def write(self, position: TrainingPosition) -> None:
        """Replace the file by the totals of *position*; errors are ignored, since checkpoints report them."""
        if self._path is None:
            return
        new = self._path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            new.write_text(json.dumps({"seconds": position.seconds, "joules": position.joules}))
            new.replace(self._path)

    def remove(self) -> None:
        """Remove the file: the job has ended, and its last checkpoint has the totals."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def add_to(self, position: TrainingPosition, warn: Callable[[str], None] | None = None) -> None:
        """Add what was spent after the checkpoint of *position*; both are totals, so none counts twice."""
        if self._path is None:
            return
        try:
            values = json.loads(self._path.read_text(encoding="utf-8"))
            seconds, joules = float(values["seconds"]), float(values["joules"] or 0.0)
        except (OSError, ValueError, KeyError, TypeError):
            return
        lost_s, lost_j = seconds - position.seconds, joules - (position.joules or 0.0)
        if 0 < lost_s < math.inf:
            position.lost_seconds += lost_s
            position.seconds = seconds
        if 0 < lost_j < math.inf:
            position.lost_joules += lost_j
            position.joules = joules
            if warn is not None:
                warn(f"{lost_j:.0f} J were spent after the last checkpoint, in {lost_s:.0f} s; they count")
