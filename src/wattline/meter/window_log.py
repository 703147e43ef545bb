"""CSV log of measuring windows, to which several processes may append."""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from wattline.errors import ConfigError


class WindowLog:
    """A CSV file with one row per window; each row is written at once, under a lock."""

    def __init__(self, path: str | Path, columns: Sequence[str]) -> None:
        """Check that rows with *columns* can be appended, and write the header of a new file."""
        self.path = Path(path)
        self._columns = tuple(columns)
        try:
            with self._open() as file:
                header = self._read_header(file)
        except OSError as error:
            raise ConfigError(f"{self.path}: windows cannot be written: {error.strerror}") from None
        missing = [name for name in self._columns if name not in header]
        if missing:
            raise ConfigError(
                f"{self.path}: line 1 has no column {missing[0]}, expected {','.join(self._columns)}",
                "give csv= another file, or remove this one",
            )

    def append(self, values: Mapping[str, object]) -> None:
        """Append a row; columns that have no value stay empty."""
        with self._open() as file:
            header = self._read_header(file)  # another process may have written a longer one
            _write_all(file, _format_row([values.get(name, "") for name in header]))

    @contextmanager
    def _open(self) -> Iterator[int]:
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _read_header(self, file: int) -> tuple[str, ...]:
        """Return the columns of the file; write them if it is empty, and end a line that was cut off."""
        size = os.fstat(file).st_size
        if size == 0:
            _write_all(file, _format_row(self._columns))
            return self._columns
        if os.pread(file, 1, size - 1) != b"\n":
            _write_all(file, b"\n")
        first = os.pread(file, 1 << 16, 0).split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")
        return tuple(next(csv.reader([first]), ()))


def _format_row(values: Sequence[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(["" if value is None else value for value in values])
    return text.getvalue().encode()


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
