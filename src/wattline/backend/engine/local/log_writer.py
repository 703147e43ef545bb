"""Log files of one rank, with rotation. Imported by the supervisor process: standard library only."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import pairwise


class LogWriter:
    """Output of one rank in *keep* files of at most *limit* bytes. Bytes that are lost are counted."""

    def __init__(self, name: str, limit: int, keep: int) -> None:
        self.lost = 0  # bytes
        self._name, self._limit, self._keep = name, limit, keep
        self._file, self._size = -1, 0
        with suppress(OSError):
            self._open()

    def write(self, data: bytes) -> None:
        """Append *data*; a file ends with a whole line if one fits."""
        at = 0
        try:
            while at < len(data):
                if self._file < 0:
                    self._open()
                room = self._limit - self._size
                if len(data) - at <= room:
                    cut = len(data)
                else:
                    cut = data.rfind(b"\n", at, at + max(0, room)) + 1 or at + max(0, room)
                while at < cut:
                    written = os.write(self._file, data[at:cut])
                    at, self._size = at + written, self._size + written
                if at < len(data):
                    self._rotate()
        except OSError:
            self.lost += len(data) - at

    def close(self) -> None:
        """Close the current file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._name, flags, 0o640)
        self._size = os.fstat(self._file).st_size

    def _rotate(self) -> None:
        self.close()
        names = [self._name, *(f"{self._name}.{age}" for age in range(1, self._keep))]
        for newer, older in reversed(list(pairwise(names))):
            if os.path.exists(newer):
                os.replace(newer, older)
        if self._keep == 1:
            os.unlink(self._name)
