"""Progress of a running job, read from the lines that its session appends to events.jsonl."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattline.backend.engine.user_files import open_file
from wattline.profiler.cap_aim import CapMeasurement

_MAX_BYTES = 1 << 20  # of one read
_MAX_READS = 1 << 10  # of one file, after its job has ended
_DAY_S = 86400.0
_MAX_CAPS = 100  # of a sweep
_MAX_RATE = 1e3  # whole jobs per second; a higher rate is an error of the job's clock


@dataclass
class ProgressReader:
    """The state of one attempt's session, as far as its file was read."""

    path: Path
    fraction: float | None = None  # of the job's work that is done
    saved: float = 0.0  # of the job's work that is in the checkpoint
    saved_count: int = 0  # checkpoints that the session has written in this attempt
    saved_s: float = 0.0  # time of the last of them
    has_session: bool = False
    first_s: float | None = None  # time of the first report of steps
    first_counted: bool = False  # the start-up of the attempt is known
    at_s: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    joules: float | None = None  # over all attempts, as the session counts
    seconds: float = 0.0
    epochs: int = 0
    batch: int = 0
    kind: str = ""
    method: str = ""
    cap_w: float | None = None  # the best power limit that the session found
    aim: str = ""  # by which it is the best
    gpus: int = 0  # under the caps of the sweep
    sweep: tuple[CapMeasurement, ...] = ()  # caps that the session measured
    ended: str = ""  # how, as the session reports it; empty: it has not
    out_of_memory: bool = False
    _offset: int = 0
    _first: tuple[float, float] | None = None  # time and fraction of the first report
    _starts_anew: bool = False  # the session found no checkpoint

    def read_to_end(self) -> None:
        """Read all that is left of a file that does not grow any more."""
        for _ in range(_MAX_READS):
            before = self._offset
            self.read()
            if self._offset == before:
                return

    def read(self) -> bool:
        """Read new lines; return whether there were any."""
        try:
            with open_file(self.path) as file:
                file.seek(self._offset)
                block = file.read(_MAX_BYTES)
        except OSError:
            return False
        lines, newline, _ = block.rpartition(b"\n")
        self._offset += len(lines) + len(newline)
        if len(block) == _MAX_BYTES and not newline:
            self._offset += len(block)  # no session writes a line of this length: skip it
        for line in lines.split(b"\n"):
            with suppress(Exception):  # the content is the job's and must not stop the service
                self._read_line(line)
        return bool(newline)

    @property
    def rate(self) -> float | None:
        """Fraction of the job per second since the attempt's first report; None: not known yet."""
        if self._first is None or self.fraction is None or self.at_s <= self._first[0]:
            return None
        done = self.fraction - self._first[1]
        rate = done / (self.at_s - self._first[0]) if done > 0 else 0.0
        return rate if 0 < rate < _MAX_RATE else None

    def _read_line(self, line: bytes) -> None:
        """Read one line, and ignore it if it is not an event of a session."""
        try:
            values = json.loads(line)
            event, at_s = str(values["event"]), float(values["at"])
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return
        if not abs(at_s - time.time()) < _DAY_S:
            return
        self.at_s = at_s
        self._read_numbers(values)
        if event == "began":
            self.has_session = True
            self._starts_anew = values.get("resumed") is False
            self.kind, self.method = _text(values.get("kind", "")), _text(values.get("method", ""))
        elif event == "report" and isinstance(values.get("metrics"), dict):
            pairs = list(values["metrics"].items())[:100]
            self.metrics = {_text(k): float(v) for k, v in pairs if _is_number(v)}
        elif event == "cap":
            self.cap_w = _number(values.get("cap_w"))
            self.aim, self.gpus = _text(values.get("aim", "")), _count(values.get("gpus"))
            self.sweep = _read_sweep(values.get("sweep"))
        elif event == "resumed":
            self.saved = self.fraction or 0.0
        elif event in ("saved", "yielded"):
            self.saved = self.fraction or 0.0
            self.saved_s = at_s
            self.saved_count += 1
        elif event == "progress" and self.first_s is None:
            self.first_s = at_s
        elif event == "ended":
            self.ended = _text(values.get("how", "ended"))
            self.out_of_memory = values.get("out_of_memory") is True

    def _read_numbers(self, values: dict[str, Any]) -> None:
        fraction = _number(values.get("fraction"))
        if fraction is not None and 0 <= fraction <= 1:
            self.fraction = fraction
            if self._first is None:
                self._first = self.at_s, fraction
                if not self._starts_anew:
                    self.saved = fraction  # an attempt starts from its checkpoint
        joules = _number(values.get("joules"))
        self.joules = self.joules if joules is None or joules < 0 else joules
        self.seconds = _number(values.get("seconds")) or self.seconds
        self.epochs = _count(values.get("epoch")) or self.epochs
        self.batch = _count(values.get("batch")) or self.batch


def _read_sweep(rows: Any) -> tuple[CapMeasurement, ...]:
    """Return the caps of an event; empty if one of them is not a measurement."""
    sweep = []
    for row in rows[:_MAX_CAPS] if isinstance(rows, list) else ():
        cap_w, steps, seconds, joules, spoilt = row
        if not all(_is_number(value) and value > 0 for value in (cap_w, steps, seconds, joules)):
            return ()
        sweep.append(CapMeasurement(cap_w, steps, seconds, joules, bool(spoilt)))
    return tuple(sweep)


def _count(value: Any) -> int:
    number = _number(value)
    return int(number) if number is not None and 0 <= number < 2**31 else 0


def _text(value: Any) -> str:
    return str(value)[:100].encode("utf-8", "replace").decode()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None
