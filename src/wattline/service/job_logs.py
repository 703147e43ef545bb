"""Job logs: the output of one rank, read whole, from its end, or while it grows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wattline.backend.engine.folder_layout import attempt_folders
from wattline.backend.engine.user_files import open_file
from wattline.errors import NotFound

_BLOCK_BYTES = 1 << 16
LOST = b"\n[wattline: output is missing here: the log was rotated before it was read]\n"


def find_log(root: Path, job: str, attempt: int | None, rank: int) -> Path | None:
    """Return the log of an attempt (None: the latest), or None if the job has not started."""
    paths = find_logs(root, job, attempt, rank)
    return paths[-1] if paths else None


def find_logs(root: Path, job: str, attempt: int | None, rank: int) -> list[Path]:
    """Return the logs of all attempts, the oldest first, or of one *attempt*; empty: none has started.

    *job* comes from a URL; the caller has checked that it consists of digits.
    """
    folders = attempt_folders(root, job)
    if attempt is not None:
        folders = [folder for folder in folders if folder.name == str(attempt)]
        if not folders:
            raise NotFound(f"job {job} has no attempt {attempt}")
    paths = [folder / f"rank{rank}.log" for folder in folders]
    if rank and paths and not paths[-1].exists():
        raise NotFound(f"job {job} has no rank {rank}")
    return paths


def list_ranks(root: Path, job: str, attempt: int | None) -> list[int]:
    """Return the ranks of an attempt (None: the latest) that have logs."""
    path = find_log(root, job, attempt, 0)
    names = [] if path is None else [one.stem.removeprefix("rank") for one in path.parent.glob("rank*.log")]
    return sorted(int(name) for name in names if name.isdecimal())


class LogPosition(NamedTuple):
    """A byte of a log; the inode names the file, which is renamed when it is rotated."""

    inode: int
    offset: int


class LogReader:
    """Reads a log that may grow, and is rotated when it is large, from its oldest file to its newest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position: LogPosition | None = None  # of the next byte; None: the start of the oldest file

    def read(self, tail: int | None = None) -> Iterator[bytes]:
        """Yield the whole log, or its last *tail* lines."""
        if tail is not None:
            self.seek_to_last(tail)
        while block := self.read_block():
            yield block

    def read_block(self) -> bytes:
        """Return the next bytes; empty: there are none yet."""
        lost = b""
        while True:
            files = self.list_files()  # first: a file that is not the newest here grows no more
            if not files:
                return b""
            inodes = [inode for inode, _ in files]
            if self.position is None:
                self.position = LogPosition(inodes[-1], 0)
            age = inodes.index(self.position.inode) if self.position.inode in inodes else None
            block = None if age is None else _read_at(files[age][1], self.position)
            if block is None and age is not None and inodes != [inode for inode, _ in self.list_files()]:
                continue  # it was renamed between the list and the reading
            if block is None:
                lost, self.position = LOST, LogPosition(inodes[-1], 0)
            elif block or age == 0:
                self.position = LogPosition(self.position.inode, self.position.offset + len(block))
                return lost + block
            else:
                assert age is not None
                self.position = LogPosition(inodes[age - 1], 0)

    def seek_to_last(self, count: int) -> None:
        """Continue with the last *count* lines; the last one may have no newline."""
        files = self.list_files()
        self.position = None
        at_end = True
        for inode, path in files:
            try:
                with open_file(path) as file:
                    at = file.seek(0, os.SEEK_END)
                    if count == 0:
                        self.position = LogPosition(inode, at)
                        return
                    while at > 0:
                        start = max(at - _BLOCK_BYTES, 0)
                        file.seek(start)
                        block = file.read(at - start)
                        end = len(block) - (at_end and block.endswith(b"\n"))  # it closes the last line
                        at_end, at = False, start
                        newlines = block.count(b"\n", 0, end)
                        if newlines < count:
                            count -= newlines
                            continue
                        for _ in range(count):
                            end = block.rfind(b"\n", 0, end)
                        self.position = LogPosition(inode, start + end + 1)
                        return
            except OSError:
                return

    def list_files(self) -> list[tuple[int, Path]]:
        """Return inode and path of the log's files, the newest first.

        A rotation meanwhile only moves files to older names, so none is missed in this order.
        """
        rotated = sorted(
            (path for path in self.path.parent.glob(f"{self.path.name}.*") if path.suffix[1:].isdecimal()),
            key=lambda path: int(path.suffix[1:]),
        )
        files: dict[int, Path] = {}
        for path in (self.path, *rotated):
            try:
                inode = path.lstat().st_ino
            except OSError:
                continue
            files.pop(inode, None)
            files[inode] = path
        return list(files.items())


def _read_at(path: Path, position: LogPosition) -> bytes | None:
    """Return the bytes from a position; None: the file under this name is another one."""
    try:
        with open_file(path) as file:
            status = os.fstat(file.fileno())
            if status.st_ino != position.inode or status.st_size < position.offset:
                return None
            file.seek(position.offset)
            return file.read(_BLOCK_BYTES)
    except FileNotFoundError:
        return None
    except OSError:
        return b""
