"""Caps and energy counters of simulated GPUs, in a small file shared between processes.

As on a real GPU, a cap stays set after the process has ended, and two sessions see the same counter. The
file has a header (magic number, kind, count) and one row per GPU, and is locked for every change.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

from wattline.errors import ConfigError, MeterError

_MAGIC = b"wattsim2"
_HEADER = struct.Struct("<8s16sq")
_ROW = struct.Struct("<8d")
_OLD_MAGIC, _OLD_ROW = b"wattsim1", struct.Struct("<7d")  # without the counter


@dataclass
class GpuRow:
    """One GPU: *energy_j* up to *at_s*, idle since then; *draw_w* is its power in the last *busy_s*.

    *counter_j* is the energy at the last renewal of a stepped counter.
    """

    cap_w: float
    clock_mhz: float = 0.0  # 0 = not locked
    energy_j: float = 0.0
    at_s: float = 0.0
    draw_w: float = 0.0
    busy_s: float = 0.0
    steps: float = 0.0
    counter_j: float = 0.0


class SimulatedGpuState:
    """The state file of *count* GPUs of a *kind*, created if it does not exist."""

    def __init__(self, folder: Path, kind: str, count: int, cap_w: float, now_s: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "gpus.bin"
        self.count = count
        self._size = _HEADER.size + count * _ROW.size
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with self._lock():
                self._create_or_check(kind, cap_w, now_s)
            self._map = mmap.mmap(self._file, self._size)
        except BaseException:
            os.close(self._file)
            raise

    def _create_or_check(self, kind: str, cap_w: float, now_s: float) -> None:
        header = os.pread(self._file, _HEADER.size, 0)
        if not header:
            rows = (GpuRow(cap_w, at_s=now_s) for _ in range(self.count))
            new_header = _HEADER.pack(_MAGIC, kind.encode(), self.count)
            os.pwrite(self._file, new_header + b"".join(_ROW.pack(*astuple(row)) for row in rows), 0)
            return
        if header.startswith(_OLD_MAGIC):
            header = self._upgrade()
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise ConfigError(
                f"{self.path} is not a state file of simulated GPUs", "remove it, or give another state=DIR"
            )
        _, name, count = _HEADER.unpack(header)
        file_kind = name.rstrip(b"\0").decode()
        if (file_kind, count) != (kind, self.count):
            raise ConfigError(
                f"{self.path} holds {count}x{file_kind}, expected {self.count}x{kind}",
                "give another state=DIR",
            )

    def _upgrade(self) -> bytes:
        """Add the counter to the rows of an older file, and return the new header."""
        _, kind, count = _HEADER.unpack(os.pread(self._file, _HEADER.size, 0))
        old = os.pread(self._file, count * _OLD_ROW.size, _HEADER.size)
        rows = (_OLD_ROW.unpack_from(old, n * _OLD_ROW.size) for n in range(count))
        header = _HEADER.pack(_MAGIC, kind, count)
        os.pwrite(self._file, header + b"".join(_ROW.pack(*row, row[2]) for row in rows), 0)
        return header

    @contextmanager
    def _lock(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def read_row(self, number: int) -> GpuRow:
        """Return the current row of one GPU."""
        self._check_open()
        with self._lock():
            return self._unpack(number)

    def _unpack(self, number: int) -> GpuRow:
        return GpuRow(*_ROW.unpack_from(self._map, _HEADER.size + number * _ROW.size))

    @contextmanager
    def change_row(self, number: int) -> Iterator[GpuRow]:
        """Yield the row of one GPU under the lock, and write it back when the block ends."""
        self._check_open()
        with self._lock():
            row = self._unpack(number)
            yield row
            _ROW.pack_into(self._map, _HEADER.size + number * _ROW.size, *astuple(row))

    def _check_open(self) -> None:
        if self._map.closed:
            raise MeterError("the meter of these simulated GPUs is closed")

    def close(self) -> None:
        """Close the file; its content stays."""
        if not self._map.closed:
            self._map.close()
            os.close(self._file)
