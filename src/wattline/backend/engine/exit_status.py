"""The exit status of an attempt, as its supervisor wrote it to exit.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from wattline.backend.engine.user_files import read_json

REQUEUE = 75
"""Exit code of a job that has saved its work and wants to be started again (EX_TEMPFAIL)."""

_FILE_KEYS = {"sent_signal": "fired", "end_request": "asked"}  # the other keys are the fields' names


@dataclass(frozen=True)
class Exit:
    """The end of an attempt. *code* is that of the rank that failed first; 128 + n: signal n killed it."""

    code: int
    signal: str | None  # that killed the rank
    sent_signal: str | None  # the last one that the supervisor sent
    end_request: Literal["stop", "kill", "timeout"] | None  # None: not requested, or one rank had failed
    oom: bool
    message: str
    began_at: float
    ended_at: float
    seconds: float
    max_rss_bytes: int  # of the largest process
    cpu_seconds: float
    log_lost_bytes: int
    ranks: tuple[Mapping[str, Any], ...]

    @classmethod
    def read(cls, path: Path) -> Exit | None:
        """Return the content of an exit.json; None: it is missing or invalid."""
        values = read_json(path)
        try:
            named = {field.name: values[_FILE_KEYS.get(field.name, field.name)] for field in fields(cls)}
            exit = cls(**{**named, "ranks": tuple(values["ranks"])})
        except (KeyError, TypeError):
            return None
        return exit if exit._is_valid() else None

    def _is_valid(self) -> bool:
        """Return whether all values have their types; a user may have written the file."""
        whole = (self.code, self.max_rss_bytes, self.log_lost_bytes)
        seconds = (self.began_at, self.ended_at, self.seconds, self.cpu_seconds)
        return (
            all(type(value) is int for value in whole)
            and all(type(value) in (int, float) and math.isfinite(value) for value in seconds)
            and all(value is None or type(value) is str for value in (self.signal, self.sent_signal))
            and self.end_request in (None, "stop", "kill", "timeout")
            and type(self.oom) is bool
            and type(self.message) is str
        )

    @property
    def state(self) -> str:
        """A state name of Slurm, or REQUEUE. CANCELLED is not among them: only the caller knows of that."""
        if self.end_request == "timeout":
            return "TIMEOUT"
        if self.code == 0:
            return "SUCCEEDED"
        if self.code == REQUEUE:
            return "REQUEUE"
        return "OUT_OF_MEMORY" if self.oom else "FAILED"
