"""Where a job was: kept so that a new process goes on at the same step, however the old one ended."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from wattline.errors import InputError

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
    joules: float | None = None  # None: unmetered
    best: float | None = None  # of the metric that has a target


class Checkpoints:
    """Checkpoints in one folder, of which the newest counts; each is there whole or not at all."""

    def __init__(self, folder: Path, save: Keep | None, load: Keep | None) -> None:
        self.folder = folder
        self._save, self._load = save, load

    def write(self, where: Where) -> None:
        """Keep where the job is, and what the user's `save` writes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(".new-*"):  # of who was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        new = self.folder / f".new-{os.getpid()}"
        new.mkdir()
        if self._save is not None:
            self._save(new / _USER)
        with open(new / _STATE, "w", encoding="utf-8") as text:
            json.dump(asdict(where), text)
            text.flush()
            os.fsync(text.fileno())
        old = self._all()
        new.rename(self.folder / f"{1 + (int(old[-1].name) if old else 0):08d}")
        for path in old:
            shutil.rmtree(path, ignore_errors=True)

    def read(self) -> Where | None:
        """Go back to the newest checkpoint, if there is one."""
        for path in reversed(self._all()):
            try:
                words = json.loads((path / _STATE).read_text(encoding="utf-8"))
                where = Where(**{field.name: words[field.name] for field in fields(Where)})
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path / _STATE}: is no checkpoint ({error!r}), expected what wattline wrote",
                    hint=f"remove {path} to start from an older one, or from the beginning",
                ) from None
            if self._load is not None and (path / _USER).exists():
                self._load(path / _USER)
            return where
        return None

    def _all(self) -> list[Path]:
        """From the oldest to the newest."""
        return sorted(path for path in self.folder.glob("[0-9]*") if path.is_dir() and path.name.isdecimal())
