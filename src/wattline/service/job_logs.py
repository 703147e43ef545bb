"""Job logs: the output of one rank, read whole, from its end, or while it grows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from wattline.backend.engine.folder_layout import attempt_folders
from wattline.errors import NotFound

_BLOCK_BYTES = 1 << 16
_LINE_LIMIT_BYTES = 1 << 20  # a longer line is cut


def find_log(root: Path, job: str, attempt: int | None, rank: int) -> Path | None:
    """Return the log of an attempt (None: the latest), or None if the job has not started.

    *job* comes from a URL; the caller has checked that it consists of digits.
    """
    folders = attempt_folders(root, job)
    if attempt is not None:
        folders = [folder for folder in folders if folder.name == str(attempt)]
        if not folders:
            raise NotFound(f"job {job} has no attempt {attempt}")
    if not folders:
        return None
    path = folders[-1] / f"rank{rank}.log"
    if rank and not path.exists():
        raise NotFound(f"job {job} has no rank {rank}")
    return path


class LogTail:
    """A log that may grow, and may be rotated when it is large."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._position = 0
        self._inode = -1  # of the file read so far: it changes when the log is rotated
        self._partial = b""  # a line without its end yet

    def read(self, tail: int | None = None) -> Iterator[bytes]:
        """Yield the whole log with its rotated files, or its last *tail* lines."""
        if self.path is None:
            return
        if tail is not None:
            self.skip_to_last(tail)
            for line in self.read_lines(ended=True):
                yield (line + "\n").encode("utf-8", "replace")
            return
        rotated = sorted(self.path.parent.glob(f"{self.path.name}.[0-9]*"), reverse=True)
        for path in (*rotated, self.path):
            try:
                with open(path, "rb") as file:
                    while block := file.read(_BLOCK_BYTES):
                        yield block
            except OSError:
                continue

    def skip_to_last(self, count: int) -> None:
        """Continue with the last *count* lines."""
        assert self.path is not None
        try:
            with open(self.path, "rb") as file:
                end = at = file.seek(0, os.SEEK_END)
                newlines = 0  # counted from the end; the one at the very end closes the last line
                while at > 0 and newlines <= count:
                    start = max(at - _BLOCK_BYTES, 0)
                    file.seek(start)
                    newlines += file.read(at - start).count(b"\n")
                    at = start
                file.seek(at)
                lines = file.read(end - at).splitlines(keepends=True)
                self._position = end - sum(map(len, lines[len(lines) - min(count, len(lines)) :]))
                self._inode = os.fstat(file.fileno()).st_ino
        except OSError:
            return

    def skip_to_offset(self, offset: int) -> None:
        """Continue with this byte."""
        self._position = offset

    @property
    def offset(self) -> int:
        """The byte after the last line that `read_lines` returned."""
        return self._position - len(self._partial)

    def read_lines(self, ended: bool = False) -> list[str]:
        """Return the complete lines since the last call; if the log has *ended*, also a partial last line."""
        if self.path is None:
            return []
        try:
            with open(self.path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if self._inode not in (-1, inode):
                    self._position = 0
                self._inode = inode
                file.seek(self._position)
                block = file.read(_BLOCK_BYTES)
        except OSError:
            return []
        self._position += len(block)
        text = self._partial + block
        complete, newline, self._partial = text.rpartition(b"\n")
        if not newline and (len(self._partial) > _LINE_LIMIT_BYTES or (ended and not block)):
            complete, newline, self._partial = self._partial, self._partial[:1], b""
        return complete.decode("utf-8", "replace").split("\n") if newline else []
