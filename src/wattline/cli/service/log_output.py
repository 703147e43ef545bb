"""Output of jobs on the terminal, or in a file or pipe.

A terminal gets what the job wrote, so that its progress bars are redrawn. A file gets whole lines, and of
a progress bar the last state.
"""

from __future__ import annotations

import sys
import threading
from typing import BinaryIO

from wattline.service.log_lines import LineCollector

_lock = threading.Lock()  # several jobs may be followed at once


class LogOutput:
    """Destination of one job's output: stdout, or stderr if stdout is kept for JSON."""

    def __init__(self, prefix: str = "", on_stderr: bool = False) -> None:
        stream = sys.stderr if on_stderr else sys.stdout
        self._file: BinaryIO = stream.buffer
        self._prefix = prefix.encode()
        self._lines = None if stream.isatty() and not prefix else LineCollector()
        self._at_line_start = True

    def write(self, block: bytes) -> None:
        """Write what the job has written."""
        if self._lines is None:
            self._write(block)
            return
        for line in self._lines.feed(block):
            self._write(line)

    def close(self) -> None:
        """Write an unfinished line, and end it."""
        for line in self._lines.finish() if self._lines is not None else ():
            self._write(line)
        if not self._at_line_start:
            self._write(b"\n")

    def _write(self, piece: bytes) -> None:
        if not piece:
            return
        with _lock:
            self._file.write((self._prefix if self._at_line_start else b"") + piece)
            self._file.flush()
        self._at_line_start = piece.endswith(b"\n")
