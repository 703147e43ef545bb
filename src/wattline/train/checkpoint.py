"""Where a job was: kept so that a new process goes on at the same step, however the old one ended."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from wattline.errors import ConfigError, InputError
from wattline.meter.caps.record import sync

_STATE = "wattline.json"
_USER = "user"

Keep = Callable[[Path], Any]
"""Writes what the user needs to a path, or reads it back."""


@dataclass(slots=True)
class Where:
    """How far a job is, and what it has used; counts on while it runs."""

    epoch: int = 0
    step: int = 0  # of the epoch
    steps: int = 0  # of all epochs
    samples: float = 0.0
    seconds: float = 0.0
    joules: float | None = None  # of all ranks; None: unmetered
    best: float | None = None  # of the metric that has a target
    reached: bool = False
    over: bool = False  # it ended by itself
    batch: int = 0  # 0: nobody said


class Checkpoints:
    """Checkpoints in one folder, of which the newest counts; each is there whole or not at all."""

    def __init__(self, folder: Path, save: Keep | None, load: Keep | None) -> None:
        self.folder = folder.resolve()
        self._save, self._load = save, load
        self._lock = -1

    def claim(self) -> None:
        """Make the folder, and be the only one that writes there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ConfigError(f"{self.folder}: another job that runs keeps its checkpoints there") from None
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot keep checkpoints: {error.strerror}") from None

    def release(self) -> None:
        """Let others write there."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def write(self, where: Where) -> None:
        """Keep where the job is, and what the user's `save` writes."""
        for left in self.folder.glob(".new-*"):  # of who was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        new = self.folder / f".new-{os.getpid()}"
        new.mkdir()
        if self._save is not None:
            self._save(new / _USER)
        (new / _STATE).write_text(json.dumps(asdict(where)), encoding="utf-8")
        for path in (*new.rglob("*"), new):
            sync(path)
        old = self._all()
        new.rename(self.folder / f"{1 + (int(old[-1].name) if old else 0):08d}")
        sync(self.folder)
        for path in old:
            shutil.rmtree(path, ignore_errors=True)

    def read(self) -> Where | None:
        """Where the newest checkpoint was; None: there is none."""
        for path in reversed(self._all()):
            try:
                words = json.loads((path / _STATE).read_text(encoding="utf-8"))
                return Where(**{field.name: words[field.name] for field in fields(Where)})
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path / _STATE}: is no checkpoint ({error!r}), expected what wattline wrote",
                    hint=f"remove {path} to start from an older one, or from the beginning",
                ) from None
        return None

    def load(self) -> None:
        """Let the user read back what belongs to the newest checkpoint."""
        path = self._all()[-1] / _USER
        if self._load is not None and path.exists():
            self._load(path)

    def _all(self) -> list[Path]:
        """From the oldest to the newest."""
        return sorted(path for path in self.folder.glob("[0-9]*") if path.is_dir() and path.name.isdecimal())
