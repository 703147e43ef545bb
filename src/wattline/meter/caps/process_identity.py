"""Who is a process, so that others can tell whether it still lives?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Owner:
    """A process: its number says nothing without when it started, and where numbers are counted."""

    pid: int
    started: int  # ticks since the machine booted
    boot: str
    pids: str  # the namespace of process numbers: containers have their own
    host: str

    def lives(self) -> bool | None:
        """Whether it does; None: it cannot be told from here."""
        if self.boot != _boot():
            return False if self.host == _host() else None
        if self.pids != _pids():
            return None
        return started(self.pid) == self.started


def myself() -> Owner:
    """This process."""
    return Owner(os.getpid(), started(os.getpid()) or 0, _boot(), _pids(), _host())


def started(pid: int) -> int | None:
    """When a process started; None: there is none, or it is dead and only waits to be collected."""
    if not (_PROC / "self").exists():
        return _exists(pid)
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # its name may have anything in it
    return None if fields[0] in "ZXx" else int(fields[19])


def _exists(pid: int) -> int | None:
    """0 where a process is, on systems that do not tell more; None: there is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pids() -> str:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def _host() -> str:
    return os.uname().nodename
