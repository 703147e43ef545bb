"""What a job tells of itself while it runs: the lines of its session, read as they come."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MOST_BYTES = 1 << 20  # of one look
_DAY_S = 86400.0
_FASTEST = 1e3  # of whole jobs, in a second: nobody is faster


@dataclass
class Progress:
    """The session of one attempt, as far as its file was read."""

    path: Path
    fraction: float | None = None  # of the job that is done
    saved: float = 0.0  # of the job that a checkpoint has
    at_s: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    joules: float | None = None  # of all attempts, as the session counts
    seconds: float = 0.0
    epochs: int = 0
    batch: int = 0
    kind: str = ""
    method: str = ""
    cap_w: float | None = None  # the best that it found
    ended: str = ""  # how, as the session says
    _offset: int = 0
    _first: tuple[float, float] | None = None  # when, and what fraction

    def look(self) -> bool:
        """Read what is new; answers whether there was anything."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                block = file.read(_MOST_BYTES)
        except OSError:
            return False
        whole, newline, _ = block.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        if len(block) == _MOST_BYTES and not newline:
            self._offset += len(block)  # a line without end: not ours
        for line in whole.split(b"\n"):
            with suppress(Exception):  # whatever a job writes, it is not our end
                self._read(line)
        return bool(newline)

    @property
    def rate(self) -> float | None:
        """Fraction of the job for each second, since the attempt began; None: not known yet."""
        if self._first is None or self.fraction is None or self.at_s <= self._first[0]:
            return None
        done = self.fraction - self._first[1]
        rate = done / (self.at_s - self._first[0]) if done > 0 else 0.0
        return rate if 0 < rate < _FASTEST else None

    def _read(self, line: bytes) -> None:
        """One line; a job may write anything there, and what is not understood is left alone."""
        try:
            words = json.loads(line)
            event, at_s = str(words["event"]), float(words["at"])
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return
        if not abs(at_s - time.time()) < _DAY_S:
            return
        self.at_s = at_s
        self._numbers(words)
        if event == "began":
            self.kind, self.method = _text(words.get("kind", "")), _text(words.get("method", ""))
        elif event == "report" and isinstance(words.get("metrics"), dict):
            pairs = list(words["metrics"].items())[:100]
            self.metrics = {_text(k): float(v) for k, v in pairs if _is_number(v)}
        elif event == "cap":
            self.cap_w = _number(words.get("cap_w"))
        elif event == "yielded":
            self.saved = self.fraction or 0.0
        elif event == "ended":
            self.ended = _text(words.get("how", "ended"))

    def _numbers(self, words: dict[str, Any]) -> None:
        fraction = _number(words.get("fraction"))
        if fraction is not None and 0 <= fraction <= 1:
            self.fraction = fraction
            if self._first is None:
                self._first = self.at_s, fraction
                self.saved = fraction  # it begins where its checkpoint was
        joules = _number(words.get("joules"))
        self.joules = self.joules if joules is None or joules < 0 else joules
        self.seconds = _number(words.get("seconds")) or self.seconds
        self.epochs = _count(words.get("epoch")) or self.epochs
        self.batch = _count(words.get("batch")) or self.batch


def _count(value: Any) -> int:
    number = _number(value)
    return int(number) if number is not None and 0 <= number < 2**31 else 0


def _text(value: Any) -> str:
    return str(value)[:100].encode("utf-8", "replace").decode()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None
