"""The caps and counters of simulated GPUs, in a small file that processes share.

A cap that is left behind stays behind, as on a real GPU, and two sessions see the same counter. The file
has a header (what it is, the kind, how many) and a row for each GPU; whoever changes it
locks it.
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

_MAGIC = b"wattsim1"
_HEAD = struct.Struct("<8s16sq")
_ROW = struct.Struct("<7d")


@dataclass
class Row:
    """One GPU: *energy_j* until *at_s*, from when on it idles; *draw_w* was drawn in the last *busy_s*."""

    cap_w: float
    clock_mhz: float = 0.0  # 0: not locked
    energy_j: float = 0.0
    at_s: float = 0.0
    draw_w: float = 0.0
    busy_s: float = 0.0
    steps: float = 0.0


class State:
    """The file, opened or made for so many GPUs of a *kind*."""

    def __init__(self, folder: Path, kind: str, count: int, cap_w: float, now_s: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "gpus.bin"
        self.count = count
        self._size = _HEAD.size + count * _ROW.size
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with self._locked():
                self._make_or_check(kind, cap_w, now_s)
            self._map = mmap.mmap(self._file, self._size)
        except BaseException:
            os.close(self._file)
            raise

    def _make_or_check(self, kind: str, cap_w: float, now_s: float) -> None:
        there = os.pread(self._file, _HEAD.size, 0)
        if not there:
            rows = (Row(cap_w, at_s=now_s) for _ in range(self.count))
            head = _HEAD.pack(_MAGIC, kind.encode(), self.count)
            os.pwrite(self._file, head + b"".join(_ROW.pack(*astuple(row)) for row in rows), 0)
            return
        if len(there) < _HEAD.size or not there.startswith(_MAGIC):
            raise ConfigError(
                f"{self.path} is not the state of simulated GPUs, expected one, or no such file"
            )
        _, name, count = _HEAD.unpack(there)
        is_kind = name.rstrip(b"\0").decode()
        if (is_kind, count) != (kind, self.count):
            raise ConfigError(
                f"{self.path} holds {count}x{is_kind}, expected {self.count}x{kind}", "give another state=DIR"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def row(self, place: int) -> Row:
        """One GPU as it is now."""
        self._check_open()
        with self._locked():
            return self._row(place)

    def _row(self, place: int) -> Row:
        return Row(*_ROW.unpack_from(self._map, _HEAD.size + place * _ROW.size))

    @contextmanager
    def changing(self, place: int) -> Iterator[Row]:
        """One GPU, to be changed by nobody else meanwhile."""
        self._check_open()
        with self._locked():
            row = self._row(place)
            yield row
            _ROW.pack_into(self._map, _HEAD.size + place * _ROW.size, *astuple(row))

    def _check_open(self) -> None:
        if self._map.closed:
            raise MeterError("the meter of these simulated GPUs is closed")

    def close(self) -> None:
        """Let go of the file; what is in it stays."""
        if not self._map.closed:
            self._map.close()
            os.close(self._file)
