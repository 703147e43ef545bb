"""Commands in a real terminal of a given size: a pseudo-terminal, with keys typed into it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command in a pseudo-terminal."""

    def __init__(self, descriptor: int, process: int) -> None:
        self._descriptor, self._process = descriptor, process
        self.output = ""

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def read(self, timeout_s: float) -> bool:
        """Read what the command writes; return False once it has ended."""
        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if not ready:
            return True
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:
            return False
        self.output += data.decode("utf-8", "replace")
        return bool(data)

    def wait_for(self, text: str, timeout_s: float = 30.0) -> str:
        """Wait until the last screen contains *text*, and return it without escape sequences."""
        until_s = time.monotonic() + timeout_s
        while text not in self.screen:
            assert time.monotonic() < until_s, f"{text!r} does not appear in {self.screen!r}"
            assert self.read(0.1) or text in self.screen, self.screen
        return self.screen

    @property
    def screen(self) -> str:
        """The text since the cursor was last moved to the top left."""
        return _ESCAPE.sub("", self.output.split("\x1b[H")[-1]).replace("\r", "")

    def wait_for_end(self, timeout_s: float = 30.0) -> int:
        """Wait until the command has ended, and return its exit code."""
        until_s = time.monotonic() + timeout_s
        while self.read(0.1):
            assert time.monotonic() < until_s, self.output
        _, status = os.waitpid(self._process, 0)
        self._process = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
        os.close(self._descriptor)


@contextmanager
def open_terminal(words: list[str], folder: Path, columns: int = 80, rows: int = 24) -> Iterator[Terminal]:
    """Run a command of wattline for the service of *folder* in a terminal."""
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "WATTLINE_DIR": str(folder), "PYTHONPATH": source, "TERM": "xterm"}
    for name in ("COLUMNS", "LINES", "WATTLINE_URL", "NO_COLOR"):
        environment.pop(name, None)
    script = (
        "import fcntl, os, struct, sys, termios; fcntl.ioctl(0, termios.TIOCSWINSZ,"
        f" struct.pack('HHHH', {rows}, {columns}, 0, 0));"
        " os.execv(sys.executable, [sys.executable, '-m', 'wattline', *sys.argv[1:]])"
    )
    process, descriptor = pty.fork()
    if process == 0:
        os.execve(sys.executable, [sys.executable, "-c", script, *words], environment)
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    terminal = Terminal(descriptor, process)
    try:
        yield terminal
    finally:
        terminal.close()
