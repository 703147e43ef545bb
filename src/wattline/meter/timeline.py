"""Power and temperature of GPUs over time, sampled in the background.

    with wattline.timeline(every_s=0.1, csv="power.csv") as t:
        train()
    plot(t.at_s, t.power_w[0], t.temperature_c[0])

Memory is bounded: when it is full, neighbouring samples are replaced by their mean, so that the whole time
stays covered at half the resolution. The CSV file has every sample, in the format of the `replay` meter.
"""

from __future__ import annotations

import csv
import fcntl
import io
import math
import os
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

from wattline.core.table import Floats
from wattline.errors import ConfigError, MeterError
from wattline.meter.power_sampler import PeriodicThread
from wattline.meter.protocol import Gpu, Meter
from wattline.meter.sources import find_sources

COLUMNS = ("at_s", "gpu", "power_w", "temperature_c")


class PowerTimeline:
    """Samples of power and temperature while a `with` block runs.

    *every_s* is the time between two samples; None: only `sample` takes one, which is also so for meters with
    a virtual clock. *gpus* and *meter* are as for `wattline.window`. *max_samples* is kept in memory.
    """

    def __init__(
        self,
        *,
        every_s: float | None = 0.1,
        gpus: int | Sequence[int] | None = None,
        csv: str | Path | None = None,
        meter: str | Meter | None = None,
        max_samples: int = 36_000,
    ) -> None:
        if every_s is not None and not 0.001 <= every_s < math.inf:
            raise ConfigError(f"every_s is {every_s}, expected seconds from 0.001 up")
        if max_samples < 2:
            raise ConfigError(f"max_samples is {max_samples}, expected a number from 2 up")
        self._every_s, self._gpu_option, self._meter_option = every_s, gpus, meter
        self._path = None if csv is None else Path(csv)
        self._max_samples = max_samples
        self._file = -1
        self._lock = threading.Lock()
        self._thread: PeriodicThread | None = None
        self._devices: tuple[Gpu, ...] = ()
        self._last_s: float = -math.inf
        self._clear()

    def __enter__(self) -> PowerTimeline:
        sources = find_sources(self._meter_option, self._gpu_option)
        self._devices = sources.gpus or sources.devices
        self._meter = sources.meter
        self._clear()
        if self._path is not None:
            self._file = _create_file(self._path)
        self.start_time, self._start_s = time.time(), self._meter.now_s()
        self._is_open = True
        self.sample()
        if self._every_s is not None and not getattr(self._meter, "is_virtual", False):
            self._thread = PeriodicThread(self._every_s, self.sample)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.stop()
            self._thread = None
        self.sample()
        with self._lock:
            self._is_open = False
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def sample(self) -> None:
        """Take a sample now; does nothing when the block has ended, or at the time of the last sample."""
        with self._lock:
            if not self._is_open:
                return
            at_s = self._meter.now_s() - self._start_s
            if at_s <= self._last_s:
                return
            self._last_s = at_s
            row = [at_s]
            for gpu in self._devices:
                row += [_read(gpu.power_w), _read(gpu.temperature_c)]
            self._write_rows(row)
            self._add(row)

    @property
    def at_s(self) -> Floats:
        """Seconds since the start, on the clock of the meter."""
        return self._column(0)

    @property
    def power_w(self) -> dict[int, Floats | None]:
        """Watts by index of the GPU, one per value of `at_s`; nan: not read, None: never."""
        return {gpu.index: self._readable(1 + 2 * k) for k, gpu in enumerate(self._devices)}

    @property
    def temperature_c(self) -> dict[int, Floats | None]:
        """Degrees Celsius by index of the GPU, one per value of `at_s`; nan: not read, None: never."""
        return {gpu.index: self._readable(2 + 2 * k) for k, gpu in enumerate(self._devices)}

    def _clear(self) -> None:
        self._width = 1 + 2 * len(self._devices)
        self._rows = array("d")
        self._pending: list[list[float]] = []  # samples of the next row
        self._stride = 1  # samples in a row
        self._last_s = -math.inf
        self._is_open = False

    def _add(self, row: list[float]) -> None:
        self._pending.append(row)
        if len(self._pending) < self._stride:
            return
        self._rows.extend(_mean_row(self._pending))
        self._pending.clear()
        if len(self._rows) >= self._max_samples * self._width:
            rows = self._list_rows()
            pairs = [_mean_row(rows[k : k + 2]) for k in range(0, len(rows) - len(rows) % 2, 2)]
            if len(rows) % 2:
                self._pending = [rows[-1]] * self._stride  # its samples are not kept one by one
            self._stride *= 2
            self._rows = array("d", (value for pair in pairs for value in pair))

    def _list_rows(self) -> list[list[float]]:
        width = self._width
        return [list(self._rows[k : k + width]) for k in range(0, len(self._rows), width)]

    def _column(self, index: int) -> Floats:
        with self._lock:
            rows = self._list_rows() + ([_mean_row(self._pending)] if self._pending else [])
        return np.array([row[index] for row in rows])

    def _readable(self, index: int) -> Floats | None:
        column = self._column(index)
        return None if np.isnan(column).all() else column

    def _write_rows(self, row: list[float]) -> None:
        if self._file < 0:
            return
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        for k, gpu in enumerate(self._devices):
            power_w, temperature_c = row[1 + 2 * k : 3 + 2 * k]
            if not math.isnan(power_w):
                temperature = "" if math.isnan(temperature_c) else f"{temperature_c:g}"
                table.writerow((f"{row[0]:.6f}", gpu.index, f"{power_w:.3f}", temperature))
        try:
            os.write(self._file, text.getvalue().encode())
        except OSError as error:  # the program that is measured goes on
            print(f"wattline: {self._path}: cannot be written: {error.strerror}", file=sys.stderr, flush=True)
            os.close(self._file)
            self._file = -1


def timeline(
    *,
    every_s: float | None = 0.1,
    gpus: int | Sequence[int] | None = None,
    csv: str | Path | None = None,
    meter: str | Meter | None = None,
    max_samples: int = 36_000,
) -> PowerTimeline:
    """Return a `PowerTimeline`, which samples power and temperature while a `with` block runs."""
    return PowerTimeline(every_s=every_s, gpus=gpus, csv=csv, meter=meter, max_samples=max_samples)


def _read(reading: object) -> float:
    """Return a reading; nan: it cannot be read."""
    assert callable(reading)
    with suppress(MeterError):
        return float(reading())
    return math.nan


def _mean_row(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of each column over the values that were read; nan: none was."""
    means = []
    for column in zip(*rows, strict=True):
        known = [value for value in column if not math.isnan(value)]
        means.append(sum(known) / len(known) if known else math.nan)
    return means


def _create_file(path: Path) -> int:
    """Create the file, or empty one that holds an earlier timeline; refuse any other file."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"{path}: a timeline cannot be written: {error.strerror}") from None
    header = (",".join(COLUMNS) + "\n").encode()
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise ConfigError(f"{path}: another timeline is written there", "give csv= another file") from None
    if os.pread(file, len(header), 0) not in (b"", header):
        os.close(file)
        raise ConfigError(f"{path}: holds something else than a timeline", "give csv= another file")
    os.ftruncate(file, 0)
    os.write(file, header)
    return file
