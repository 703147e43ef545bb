"""Processes of this machine: their file descriptors, signals to them, and their environments."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from contextlib import ExitStack
from pathlib import Path


def open_pidfd(pid: int) -> int | None:
    """Return a file descriptor of a process; None: there is no such process, or the kernel is before 5.3."""
    if not hasattr(os, "pidfd_open") or pid <= 0:
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def close_with(stack: ExitStack, file: int | None) -> int | None:
    """Close *file*, if there is one, at the end of *stack*; return it."""
    if file is not None:
        stack.callback(os.close, file)
    return file


def send_signal(pid: int, pidfd: int | None, number: signal.Signals) -> None:
    """Signal a process by its file descriptor; without one by its id, which the caller has just checked."""
    if pidfd is None:
        os.kill(pid, number)
    else:
        signal.pidfd_send_signal(pidfd, number)


def wait_for_end(pidfd: int, until_s: float) -> None:
    """Return when the process has ended, or at *until_s* of the monotonic clock."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll(None if until_s == math.inf else max(0, math.ceil(1000 * (until_s - time.monotonic()))))


def processes_with(variable: bytes) -> set[int]:
    """Return the processes that were started with *variable* (NAME=value) in their environment.

    Processes with an environment that this user may not read are left out.
    """
    ids = {int(word) for word in os.listdir("/proc") if word.isdigit()}
    return {pid for pid in ids if _has_variable(pid, variable)}


def _has_variable(pid: int, variable: bytes) -> bool:
    try:
        return variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
