"""Pages of a job's log, read backwards from a position, with a search. A log may have gigabytes.

Lines are as a terminal shows them: of a progress bar the last state. The last line may be unfinished.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from wattline.backend.engine.user_files import open_file
from wattline.service.job_logs import LogPosition, LogReader
from wattline.service.log_lines import last_state

MOST_LINES = 1000
_BLOCK_BYTES = 1 << 16
_MOST_BYTES = 1 << 25  # that are read for one page
_LINE_BYTES = 1 << 16  # that are shown of a line
CUT = b"[wattline: the start of this long line is not shown] "


class LogLine(NamedTuple):
    """A line, and the position of its first byte."""

    text: bytes
    position: LogPosition


@dataclass(frozen=True)
class LogPage:
    """Lines of a log, the oldest first."""

    lines: list[LogLine]
    unfinished: LogLine | None = None  # the last line while it has no newline; only of the newest page
    before: LogPosition | None = None  # where the earlier page ends; None: nothing is earlier
    end: LogPosition | None = None  # after the last finished line of the log; None: not the newest page
    is_lost: bool = False  # the file of the asked position, and all that is earlier, was rotated away


def read_log_page(path: Path, before: LogPosition | None, count: int, search: str = "") -> LogPage:
    """Return the last *count* lines that end *before* a position (None: the end) and contain *search*.

    The case of ASCII letters is ignored. A page may have fewer lines, even none, if a search has read 32 MiB.
    """
    wanted = search.encode().lower()
    backward = _BackwardReader(LogReader(path), before)
    if before is not None and before.inode not in backward.inodes:
        return LogPage([], is_lost=True)
    lines = backward.read_lines()
    last = next(lines, None)  # what follows the last newline: nothing, or an unfinished line
    if last is None:
        return LogPage([], before=backward.stopped)
    shown = last if last.text and wanted in last.text.lower() else None
    found = [shown] if shown and before is not None else []
    earlier = last.position if last.text else None
    for line in lines:
        earlier = line.position
        if wanted in line.text.lower():
            found.append(line)
        if len(found) >= count:
            break
    return LogPage(
        found[::-1],
        unfinished=shown if before is None else None,
        before=None if backward.is_at_start else earlier or backward.stopped,
        end=last.position if before is None else None,
    )


class _BackwardReader:
    """Reads the lines of a log and its rotated files from the newest to the oldest."""

    def __init__(self, reader: LogReader, before: LogPosition | None) -> None:
        self._reader, self._before = reader, before
        self.inodes = [inode for inode, _ in reader.list_files()]
        self.is_at_start = False  # the line that was returned last is the first of the log
        self.stopped: LogPosition | None = None  # a line so long that its start was not looked for

    def read_lines(self) -> Iterator[LogLine]:
        """Yield what follows the last newline, which may be empty, and then the lines before it."""
        tail, size, start = _LineTail(), 0, None
        for start, block in self._read_blocks():
            if size >= _MOST_BYTES:
                return
            size += len(block)
            first, *others = block.split(b"\n")
            offset = start.offset + len(block)
            for part in reversed(others):
                tail.prepend(part)
                yield LogLine(tail.take(), LogPosition(start.inode, offset - len(part)))
                offset -= len(part) + 1
            tail.prepend(first)
            self.stopped = start
        if start is not None:
            self.is_at_start = True
            yield LogLine(tail.take(), start)

    def _read_blocks(self) -> Iterator[tuple[LogPosition, bytes]]:
        first = 0 if self._before is None else self.inodes.index(self._before.inode)
        for inode in self.inodes[first:]:
            file = self._open(inode)
            if file is None:
                return  # it was rotated away meanwhile
            with file:
                at = file.seek(0, os.SEEK_END)
                if self._before is not None and inode == self._before.inode:
                    at = min(at, self._before.offset)
                if at == 0:
                    yield LogPosition(inode, 0), b""
                while at > 0:
                    start = max(at - _BLOCK_BYTES, 0)
                    file.seek(start)
                    yield LogPosition(inode, start), file.read(at - start)
                    at = start

    def _open(self, inode: int) -> BinaryIO | None:
        """Open a file of the log, which a rotation may rename meanwhile; None: it is gone."""
        for _ in range(3):
            path = dict(self._reader.list_files()).get(inode)
            if path is None:
                return None
            try:
                file = open_file(path)
            except FileNotFoundError:
                continue
            except OSError:
                return None
            if os.fstat(file.fileno()).st_ino == inode:
                return file
            file.close()
        return None


class _LineTail:
    """The end of a line, the start of which was not read yet; what is not shown is not kept."""

    def __init__(self) -> None:
        self._text, self._is_settled = b"", False

    def prepend(self, part: bytes) -> None:
        """Add the bytes before those that are known."""
        if self._is_settled:
            return
        text = part + self._text
        is_drawn_over = b"\r" in text.rstrip(b"\r")  # then nothing that is earlier is seen
        if is_drawn_over:
            text = last_state(text)
        is_long = len(text) > _LINE_BYTES
        self._text = CUT + text[-_LINE_BYTES:] if is_long else text
        self._is_settled = is_drawn_over or is_long

    def take(self) -> bytes:
        """Return the line, and begin another one."""
        text = last_state(self._text)
        self._text, self._is_settled = b"", False
        return text
