"""Replay of recorded readings on the recording's clock.

    replay:FILE.csv[,time=virtual]

A row holds the readings of one GPU at one time: `at_s,gpu,power_w,energy_j,cap_w,temperature_c`, of which
the last three may be left out. If *energy_j* is empty, power is integrated. The clock starts at the first
row and runs in real time; with `time=virtual` each step advances it to the next row. Reading after the last
row is an error, not 0 W.
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
from wattline.meter.drivers.options import check_choice, parse_options
from wattline.meter.protocol import Gpu

COLUMNS = ("at_s", "gpu", "power_w", "energy_j", "cap_w", "temperature_c")


@dataclass(frozen=True)
class Recording:
    """Recorded readings of one GPU by time; a cap or temperature of nan was not recorded."""

    at_s: tuple[float, ...]
    power_w: tuple[float, ...]
    energy_j: tuple[float, ...]
    cap_w: tuple[float, ...]
    temperature_c: tuple[float, ...]


class ReplayGpu:
    """One GPU of a recording."""

    kind = ""
    counter_s = 0.0  # interpolated between two rows

    def __init__(self, meter: ReplayMeter, number: int, index: int, recording: Recording) -> None:
        self._meter, self._recording = meter, recording
        self.index = index
        self.uuid = f"REPLAY-{os.path.basename(meter.path)}-{number}"
        self.name = f"recorded GPU {number}"
        self.method = f"replayed from {os.path.basename(meter.path)}"
        self.spec = meter.spec

    def _locate(self) -> tuple[int, float]:
        """Return the current row, and the share (0 to 1) of the time to the next row that has passed."""
        at_s, now_s = self._recording.at_s, self._meter.now_s()
        if now_s > at_s[-1]:
            raise MeterError(
                f"{self.name} has no reading at {now_s:g} s: the recording ends at {at_s[-1]:g} s"
            )
        row = max(bisect_right(at_s, now_s) - 1, 0)
        if row + 1 == len(at_s) or now_s <= at_s[row]:
            return row, 0.0
        return row, (now_s - at_s[row]) / (at_s[row + 1] - at_s[row])

    def energy_j(self) -> float:
        """Return the recorded energy, interpolated linearly between two rows."""
        row, share = self._locate()
        energy_j = self._recording.energy_j
        return energy_j[row] if not share else energy_j[row] + share * (energy_j[row + 1] - energy_j[row])

    def power_w(self) -> float:
        """Return the power of the current row."""
        return self._recording.power_w[self._locate()[0]]

    def cap_w(self) -> float:
        """Return the cap of the current row."""
        watts = self._recording.cap_w[self._locate()[0]]
        if math.isnan(watts):
            raise MeterError(f"{self.name}: its cap was not recorded")
        return watts

    def cap_range_w(self) -> tuple[float, float]:
        """Return the smallest and the largest recorded cap."""
        caps = [watts for watts in self._recording.cap_w if not math.isnan(watts)]
        if not caps:
            raise MeterError(f"{self.name}: its cap was not recorded")
        return min(caps), max(caps)

    def set_cap(self, watts: float) -> None:
        """Raise `NotPermitted`: a recording cannot be changed."""
        raise NotPermitted(f"{self.name} is a recording: caps and clocks cannot be set")

    def lock_clock(self, mhz: float | None) -> None:
        """Raise `NotPermitted`: a recording cannot be changed."""
        raise NotPermitted(f"{self.name} is a recording: caps and clocks cannot be set")

    def temperature_c(self) -> float:
        """Return the temperature of the current row."""
        degrees = self._recording.temperature_c[self._locate()[0]]
        if math.isnan(degrees):
            raise MeterError(f"{self.name}: its temperature was not recorded")
        return degrees


class ReplayMeter:
    """Meter that reads from a recording."""

    name = "replay"

    def __init__(self, path: str | Path, virtual: bool = False) -> None:
        self.path = str(path)
        self.spec = f"replay:{Path(path).absolute()}" + (",time=virtual" if virtual else "")
        recordings = _read_recordings(self.path)
        self._times_s = sorted({at_s for recording in recordings.values() for at_s in recording.at_s})
        self.is_virtual = virtual
        self._step = 0
        self._opened_s = time.monotonic()
        self._gpus = tuple(
            ReplayGpu(self, number, index, recording)
            for index, (number, recording) in enumerate(sorted(recordings.items()))
        )

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The recorded GPUs."""
        return self._gpus

    def now_s(self) -> float:
        """Return the time on the recording's clock."""
        if not self.is_virtual:
            return self._times_s[0] + time.monotonic() - self._opened_s
        steps_after_end = self._step - len(self._times_s) + 1
        return self._times_s[min(self._step, len(self._times_s) - 1)] + max(steps_after_end, 0)

    def stepped(self, samples: float) -> None:
        """Advance to the next row in virtual time."""
        self._step += 1

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _read_recordings(path: str) -> dict[int, Recording]:
    """Return the recordings by GPU number."""
    rows: dict[int, list[tuple[float, ...]]] = {}
    try:
        with open(path, newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            missing = set(COLUMNS[:3]) - set(table.fieldnames or ())
            if missing:
                raise ProfileError(
                    path, 1, f"has no column {sorted(missing)[0]}, expected {','.join(COLUMNS)}"
                )
            for row in table:
                gpu, *numbers = _parse_row(path, table.line_num, row)
                at_s = numbers[0]
                if int(gpu) in rows and at_s <= rows[int(gpu)][-1][0]:
                    raise ProfileError(
                        path, table.line_num, f"at_s is {at_s:g}, expected later than the row before"
                    )
                rows.setdefault(int(gpu), []).append(tuple(numbers))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"{path}: cannot be read: {why}") from None
    if not rows:
        raise ProfileError(path, None, "has no readings, expected at least one row")
    return {gpu: _build_recording(readings) for gpu, readings in rows.items()}


def _parse_row(path: str, line: int, row: dict[str, str]) -> tuple[float, ...]:
    """Return the GPU number and the other columns in their order; the last three are nan if empty."""
    values = []
    for name in ("gpu", "at_s", *COLUMNS[2:]):
        text = (row.get(name) or "").strip()
        try:
            value = float(text) if text or name in COLUMNS[:3] else math.nan
        except ValueError:
            value = math.inf
        if math.isinf(value) or (text and (math.isnan(value) or value < 0)):
            raise ProfileError(path, line, f"{name} is {text!r}, expected a number of at least 0")
        values.append(value)
    return tuple(values)


def _build_recording(rows: list[tuple[float, ...]]) -> Recording:
    at_s, power_w, energy_j, cap_w, temperature_c = (tuple(column) for column in zip(*rows, strict=True))
    if any(math.isnan(joules) for joules in energy_j) or any(b < a for a, b in pairwise(energy_j)):
        steps = zip(at_s, at_s[1:], power_w, power_w[1:], strict=False)
        total_j, integral_j = 0.0, [0.0]
        for start_s, end_s, start_w, end_w in steps:
            total_j += (end_s - start_s) * 0.5 * (start_w + end_w)
            integral_j.append(total_j)
        energy_j = tuple(integral_j)
    return Recording(at_s, power_w, energy_j, cap_w, temperature_c)


def open_driver(options: str) -> ReplayMeter:
    """Open the meter `replay:` *options*."""
    path, *words = options.split(",")
    if not path:
        raise ConfigError("the replay meter has no file, expected replay:FILE.csv")
    time_option = parse_options("replay", words, ("time",)).get("time", "real")
    return ReplayMeter(path, check_choice("replay", "time", time_option, ("real", "virtual")) == "virtual")
