"""Checkpoints, from which a new process resumes at the same step however the old one ended."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from wattline.errors import ConfigError, InputError
from wattline.meter.caps.record import fsync_path

STATE_FILE = "wattline.json"
USER_STATE = "user"
_LOCK_POLL_S = 0.2

StateFunction = Callable[[Path], Any]
"""Function of the user that saves state to a path, or loads it."""


@dataclass(slots=True)
class TrainingPosition:
    """Progress of a job, and the time and energy it has used; updated while it runs.

    The field names are the keys of checkpoints and progress events.
    """

    epoch: int = 0
    step: int = 0  # in the epoch
    steps: int = 0  # in all epochs
    samples: float = 0.0
    seconds: float = 0.0
    joules: float | None = None  # of all ranks; None = unmetered
    best: float | None = None  # best value of the target's metric
    reached: bool = False
    over: bool = False  # training has ended
    batch: int = 0  # 0 = unknown
    lost_seconds: float = 0.0  # part of the seconds: of processes killed after their last checkpoint
    lost_joules: float = 0.0

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> TrainingPosition:
        """Build a position from the values of a checkpoint; older ones lack the last two."""
        added = {"lost_seconds": 0.0, "lost_joules": 0.0}
        return cls(**{field.name: {**added, **values}[field.name] for field in fields(cls)})


class Checkpoints:
    """Checkpoints in one folder, written atomically; the newest is used."""

    def __init__(self, folder: Path, save: StateFunction | None, load: StateFunction | None) -> None:
        self.folder = folder.resolve()
        self._save, self._load = save, load
        self._lock = -1

    @property
    def has_state(self) -> bool:
        """True if checkpoints contain the state of the user's `save`, not only the position."""
        return self._save is not None

    def claim(self, wait_s: float = 0.0) -> None:
        """Create the folder, and lock it for this process; wait up to *wait_s* for another one to leave."""
        until_s = time.monotonic() + wait_s
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            while not self._try_lock() and time.monotonic() < until_s:
                time.sleep(_LOCK_POLL_S)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ConfigError(f"{self.folder}: a running job already writes its checkpoints there") from None
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot write checkpoints: {error.strerror}") from None

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def write(self, position: TrainingPosition) -> None:
        """Write a checkpoint with the position and the state of the user's `save`; remove older ones."""
        for leftover in self.folder.glob(".new-*"):  # of a process that was killed while writing
            shutil.rmtree(leftover, ignore_errors=True)
        new = self.folder / f".new-{os.getpid()}"
        new.mkdir()
        if self._save is not None:
            self._save(new / USER_STATE)
        (new / STATE_FILE).write_text(json.dumps(asdict(position)), encoding="utf-8")
        for path in (*new.rglob("*"), new):
            fsync_path(path)
        old = self._list_checkpoints()
        new.rename(self.folder / f"{1 + (int(old[-1].name) if old else 0):08d}")
        fsync_path(self.folder)
        for path in old:
            shutil.rmtree(path, ignore_errors=True)

    def read(self) -> TrainingPosition | None:
        """Return the position of the newest checkpoint; None: there is none."""
        for path in reversed(self._list_checkpoints()):
            try:
                values = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
                return TrainingPosition.from_values(values)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path / STATE_FILE}: not a checkpoint ({error!r}), expected a file written by wattline",
                    hint=f"remove {path} to start from an older one, or from the beginning",
                ) from None
        return None

    def load(self) -> None:
        """Call the user's `load` with the state of the newest checkpoint."""
        path = self._list_checkpoints()[-1] / USER_STATE
        if self._load is not None and path.exists():
            self._load(path)

    def _list_checkpoints(self) -> list[Path]:
        """Return the folders of the checkpoints, oldest first."""
        return sorted(path for path in self.folder.glob("[0-9]*") if path.is_dir() and path.name.isdecimal())
