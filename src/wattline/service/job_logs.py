"""What a job printed: the newest log of a rank, read from its end or as it grows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from wattline.backend.engine.job_spec import attempts
from wattline.errors import NotFound

_BLOCK = 1 << 16
_LONGEST = 1 << 20  # a line that is longer is cut


def log_path(root: Path, job: str, attempt: int | None, rank: int) -> Path | None:
    """The log of an attempt, the newest unless said; None: it has not started. Names are numbers only."""
    folders = attempts(root, job)
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


class Tail:
    """A log that may still grow, and be put aside for a new one when it is large."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._at = 0
        self._file = -1  # which one: a log that was put aside has another number
        self._rest = b""

    def text(self, tail: int | None = None) -> Iterator[bytes]:
        """All of it, with what was put aside; or its last lines."""
        if self.path is None:
            return
        if tail is not None:
            self.skip_to_last(tail)
            for line in self.lines(over=True):
                yield (line + "\n").encode("utf-8", "replace")
            return
        older = sorted(self.path.parent.glob(f"{self.path.name}.[0-9]*"), reverse=True)
        for path in (*older, self.path):
            try:
                with open(path, "rb") as file:
                    while block := file.read(_BLOCK):
                        yield block
            except OSError:
                continue

    def skip_to_last(self, count: int) -> None:
        """Begin with the last *count* lines."""
        assert self.path is not None
        try:
            with open(self.path, "rb") as file:
                end = at = file.seek(0, os.SEEK_END)
                ends = 0  # of lines, counted from the end; the one at the very end closes the last line
                while at > 0 and ends <= count:
                    start = max(at - _BLOCK, 0)
                    file.seek(start)
                    ends += file.read(at - start).count(b"\n")
                    at = start
                file.seek(at)
                lines = file.read(end - at).splitlines(keepends=True)
                self._at = end - sum(map(len, lines[len(lines) - min(count, len(lines)) :]))
                self._file = os.fstat(file.fileno()).st_ino
        except OSError:
            return

    def skip_to(self, offset: int) -> None:
        """Begin with this byte."""
        self._at = offset

    @property
    def offset(self) -> int:
        """The byte after the last line that was given."""
        return self._at - len(self._rest)

    def lines(self, over: bool = False) -> list[str]:
        """Whole lines that are new; when it is *over* also the last one without an end."""
        if self.path is None:
            return []
        try:
            with open(self.path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if self._file not in (-1, inode):
                    self._at = 0
                self._file = inode
                file.seek(self._at)
                block = file.read(_BLOCK)
        except OSError:
            return []
        self._at += len(block)
        text = self._rest + block
        whole, newline, self._rest = text.rpartition(b"\n")
        if not newline and (len(self._rest) > _LONGEST or (over and not block)):
            whole, newline, self._rest = self._rest, self._rest[:1], b""
        return whole.decode("utf-8", "replace").split("\n") if newline else []
