"""Readings that were recorded, played back on their own clock.

    replay:FILE.csv[,time=virtual]

A row is what one GPU showed at a moment: `at_s,gpu,power_w,energy_j,cap_w`. Where *energy_j* is empty,
power is integrated. The clock starts at the first moment and runs as ours does; `time=virtual`: each step
goes on to the next moment. After the last moment there is nothing to read: that is an error, not 0 W.
"""

from __future__ import annotations

import csv
import math
import os
import time
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from wattline.errors import ConfigError, MeterError, NotPermitted, ProfileError
from wattline.meter.drivers.options import one_of, read_options
from wattline.meter.protocol import Gpu

COLUMNS = ("at_s", "gpu", "power_w", "energy_j", "cap_w")


@dataclass(frozen=True)
class Track:
    """What one GPU showed, moment by moment; a cap that is nan was not recorded."""

    at_s: tuple[float, ...]
    power_w: tuple[float, ...]
    energy_j: tuple[float, ...]
    cap_w: tuple[float, ...]


class RecordedGpu:
    """One of the GPUs of a recording."""

    kind = ""

    def __init__(self, meter: Replay, number: int, index: int, track: Track) -> None:
        self._meter, self._track = meter, track
        self.index = index
        self.uuid = f"REPLAY-{os.path.basename(meter.path)}-{number}"
        self.name = f"recorded GPU {number}"
        self.method = f"replayed from {os.path.basename(meter.path)}"
        self.spec = meter.spec

    def _at(self) -> tuple[int, float]:
        """The row that holds now, and how far the next one is: 0 to 1."""
        at_s, now_s = self._track.at_s, self._meter.now_s()
        if now_s > at_s[-1]:
            raise MeterError(f"{self.name} is over: the recording ends at {at_s[-1]:g} s")
        row = max(bisect_right(at_s, now_s) - 1, 0)
        if row + 1 == len(at_s) or now_s <= at_s[row]:
            return row, 0.0
        return row, (now_s - at_s[row]) / (at_s[row + 1] - at_s[row])

    def energy_j(self) -> float:
        """As recorded; between two rows in proportion to time."""
        row, share = self._at()
        energy_j = self._track.energy_j
        return energy_j[row] if not share else energy_j[row] + share * (energy_j[row + 1] - energy_j[row])

    def power_w(self) -> float:
        """As recorded last."""
        return self._track.power_w[self._at()[0]]

    def cap_w(self) -> float:
        """As recorded last."""
        watts = self._track.cap_w[self._at()[0]]
        if math.isnan(watts):
            raise MeterError(f"{self.name}: its cap was not recorded")
        return watts

    def cap_range_w(self) -> tuple[float, float]:
        """The least and the largest cap that was recorded."""
        caps = [watts for watts in self._track.cap_w if not math.isnan(watts)]
        if not caps:
            raise MeterError(f"{self.name}: its cap was not recorded")
        return min(caps), max(caps)

    def set_cap(self, watts: float) -> None:
        """What was recorded cannot be changed."""
        raise NotPermitted(f"{self.name} is a recording: nothing can be set")

    def lock_clock(self, mhz: float | None) -> None:
        """What was recorded cannot be changed."""
        raise NotPermitted(f"{self.name} is a recording: nothing can be set")

    def temperature_c(self) -> float:
        """Was not recorded."""
        raise MeterError(f"{self.name}: its temperature was not recorded")


class Replay:
    """A recording as a meter."""

    name = "replay"

    def __init__(self, path: str | Path, virtual: bool = False) -> None:
        self.path = str(path)
        self.spec = f"replay:{Path(path).absolute()}" + (",time=virtual" if virtual else "")
        tracks = _read(self.path)
        self._moments = sorted({at_s for track in tracks.values() for at_s in track.at_s})
        self._virtual = virtual
        self._place = 0
        self._opened_s = time.monotonic()
        self._gpus = tuple(
            RecordedGpu(self, number, index, track)
            for index, (number, track) in enumerate(sorted(tracks.items()))
        )

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Those that were recorded."""
        return self._gpus

    def now_s(self) -> float:
        """The moment of the recording."""
        if not self._virtual:
            return self._moments[0] + time.monotonic() - self._opened_s
        over = self._place - len(self._moments) + 1
        return self._moments[min(self._place, len(self._moments) - 1)] + max(over, 0)

    def stepped(self, samples: float) -> None:
        """In virtual time, the next moment."""
        self._place += 1

    def close(self) -> None:
        """Nothing to let go of."""


def _read(path: str) -> dict[int, Track]:
    """Tracks by the number of the GPU."""
    rows: dict[int, list[tuple[float, float, float, float]]] = {}
    try:
        with open(path, newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            missing = set(COLUMNS[:3]) - set(table.fieldnames or ())
            if missing:
                raise ProfileError(
                    path, 1, f"has no column {sorted(missing)[0]}, expected {','.join(COLUMNS)}"
                )
            for row in table:
                gpu, *numbers = _parsed(path, table.line_num, row)
                at_s, power_w, energy_j, cap_w = numbers
                if int(gpu) in rows and at_s <= rows[int(gpu)][-1][0]:
                    raise ProfileError(
                        path, table.line_num, f"at_s is {at_s:g}, expected later than the row before"
                    )
                rows.setdefault(int(gpu), []).append((at_s, power_w, energy_j, cap_w))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"{path}: cannot be read: {why}") from None
    if not rows:
        raise ProfileError(path, None, "has no readings, expected at least one row")
    return {gpu: _track(of) for gpu, of in rows.items()}


def _parsed(path: str, line: int, row: dict[str, str]) -> tuple[float, ...]:
    """The number of the GPU, and at_s, power_w, energy_j and cap_w, of which the last two may be nan."""
    values = []
    for name in ("gpu", "at_s", "power_w", "energy_j", "cap_w"):
        text = (row.get(name) or "").strip()
        try:
            value = float(text) if text or name in COLUMNS[:3] else math.nan
        except ValueError:
            value = math.inf
        if math.isinf(value) or (text and (math.isnan(value) or value < 0)):
            raise ProfileError(path, line, f"{name} is {text!r}, expected a number of at least 0")
        values.append(value)
    return tuple(values)


def _track(rows: list[tuple[float, float, float, float]]) -> Track:
    at_s, power_w, energy_j, cap_w = (tuple(column) for column in zip(*rows, strict=True))
    if any(math.isnan(joules) for joules in energy_j) or any(b < a for a, b in pairwise(energy_j)):
        steps = zip(at_s, at_s[1:], power_w, power_w[1:], strict=False)
        total, whole = 0.0, [0.0]
        for then_s, now_s, before_w, after_w in steps:
            total += (now_s - then_s) * 0.5 * (before_w + after_w)
            whole.append(total)
        energy_j = tuple(whole)
    return Track(at_s, power_w, energy_j, cap_w)


def open_text(text: str) -> Replay:
    """The meter `replay:` *text*."""
    path, *words = text.split(",")
    if not path:
        raise ConfigError("the replay meter has no file, expected replay:FILE.csv")
    said = read_options("replay", words, ("time",))
    return Replay(path, one_of("replay", "time", said.get("time", "real"), ("real", "virtual")) == "virtual")
