"""Watchdog process that restores caps when their owner is killed.

`guard_caps` starts it in a session of its own; it ignores the signals that a terminal or a scheduler sends.
It ends when the owner reports that no cap is left to restore, or after restoring the caps of a dead owner.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from wattline.meter.caps.process_identity import read_start_ticks
from wattline.meter.caps.restore import restore_orphaned_caps

_CODE = "from wattline.meter.caps.watchdog import main; main()"
_POLL_MS = 200  # on systems without pidfd
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGPIPE")


class Watchdog:
    """Handle of the watchdog process, in the process that holds the caps."""

    def __init__(self, folder: Path) -> None:
        self._owner_pid = os.getpid()
        start_ticks = read_start_ticks(self._owner_pid) or 0
        # The watchdog imports the same modules, from any working directory.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(self._owner_pid), str(start_ticks), str(folder.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=env,
            cwd="/",
        )
        assert self._process.stdout is not None
        with self._process.stdout as output:
            self.ready = output.read(1) == b"."  # it now ignores signals and watches this process

    @property
    def pid(self) -> int:
        """Process id of the watchdog."""
        return self._process.pid

    def stop(self) -> None:
        """End the watchdog: no cap is left to restore. Does nothing in a forked child."""
        if os.getpid() != self._owner_pid:
            return
        assert self._process.stdin is not None
        with suppress(OSError), self._process.stdin as stdin:
            stdin.write(b".")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)


def main() -> None:
    """Run the watchdog; arguments: process id of the owner, its start ticks, folder of the records."""
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    owner_pid, start_ticks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    os.write(1, b".")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if wait_for_death(owner_pid, start_ticks):
        restore_orphaned_caps(folder, lambda record: record.owner.pid == owner_pid)


def wait_for_death(owner_pid: int, start_ticks: int) -> bool:
    """Wait until the owner is dead; False: it wrote to stdin that no cap is left to restore."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    pidfd = _open_pidfd(owner_pid)
    if pidfd is not None:
        poll.register(pidfd, select.POLLIN)
    while read_start_ticks(owner_pid) == start_ticks:
        for file, _ in poll.poll(None if pidfd is not None else _POLL_MS):
            if file == 0:
                if os.read(0, 1):
                    return False
                poll.unregister(0)  # the owner has closed its files, or is about to die
    return True


def _open_pidfd(pid: int) -> int | None:
    """Return a file that becomes readable when the process ends; None: not supported here."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
