"""Identity of a process, by which another process can check whether it is still alive."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessIdentity:
    """A process id with start time, boot and namespace, without which process ids are not unique.

    The field names are the keys of cap records on disk.
    """

    pid: int
    started: int  # clock ticks from boot to the start of the process
    boot: str
    pids: str  # the namespace of process ids: containers have their own
    host: str

    def is_alive(self) -> bool | None:
        """Return True if the process is alive, None if that cannot be determined from here."""
        if self.boot != _read_boot_id():
            return False if self.host == _hostname() else None
        if self.pids != _read_pid_namespace():
            return None
        return read_start_ticks(self.pid) == self.started


def identify_current_process() -> ProcessIdentity:
    """Return the identity of this process."""
    return ProcessIdentity(
        os.getpid(), read_start_ticks(os.getpid()) or 0, _read_boot_id(), _read_pid_namespace(), _hostname()
    )


def read_start_ticks(pid: int) -> int | None:
    """Return the clock ticks from boot to the start of a process; None: it does not exist, or is a zombie."""
    if not (_PROC / "self").exists():
        return _probe(pid)
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command name before it may contain spaces and brackets
    return None if fields[0] in "ZXx" else int(fields[19])


def _probe(pid: int) -> int | None:
    """Return 0 if a process exists, on systems without /proc; None: it does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0


def _read_boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _read_pid_namespace() -> str:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def _hostname() -> str:
    return os.uname().nodename
