"""The process that puts caps back when their owner is killed and cannot.

It is started by `hold`, in a session of its own, and ignores what a terminal or a scheduler sends to the
others. It ends when it is told that nothing is left to restore, or restores when the owner is dead.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from wattline.meter.caps.process_identity import started
from wattline.meter.caps.restore import reap

_RUN = "from wattline.meter.caps.watchdog import main; main()"
_LOOK_MS = 200  # where the kernel does not tell when a process ends
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGPIPE")


class Watcher:
    """Another process, for as long as we hold caps."""

    def __init__(self, folder: Path) -> None:
        self._owner = os.getpid()
        since = started(self._owner) or 0
        # It finds the modules that we find, wherever it was started.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUN, str(self._owner), str(since), str(folder.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=env,
            cwd="/",
        )
        assert self._process.stdout is not None
        with self._process.stdout as ready:
            self.ready = ready.read(1) == b"."  # by now it watches us, and ignores signals

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def stop(self) -> None:
        """Nothing is left to restore. Only who started it may say so, not what was forked from it."""
        if os.getpid() != self._owner:
            return
        assert self._process.stdin is not None
        with suppress(OSError), self._process.stdin as told:
            told.write(b".")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)


def main() -> None:
    """Watch a process (its number, when it started), and restore from a folder: the three arguments."""
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    owner, since, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    os.write(1, b".")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if died(owner, since):
        reap(folder, lambda record: record.owner.pid == owner)


def died(owner: int, since: int) -> bool:
    """Wait until a process is dead; False: before that, stdin said that it does not matter any more."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    end = _end_of(owner)
    if end is not None:
        poll.register(end, select.POLLIN)
    while started(owner) == since:
        for file, _ in poll.poll(None if end is not None else _LOOK_MS):
            if file == 0:
                if os.read(0, 1):
                    return False
                poll.unregister(0)  # it has closed everything, or ends just now
    return True


def _end_of(owner: int) -> int | None:
    """A file that can be read when a process has ended; None: not on this system."""
    try:
        return os.pidfd_open(owner)
    except (AttributeError, OSError):
        return None
