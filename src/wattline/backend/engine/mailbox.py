"""What other threads ask of the one that runs the loop; it sleeps until somebody asks or a process ends."""

from __future__ import annotations

import math
import os
import queue
import select
from collections.abc import Iterable
from contextlib import suppress
from typing import Any


class Bell:
    """Requests in order, and a sleep that they end."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._out, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ask(self, what: str, of: Any = None) -> None:
        """From any thread."""
        self._requests.put((what, of))
        with suppress(BlockingIOError):  # who is woken already need not be woken
            os.write(self._in, b"x")

    @property
    def silent(self) -> bool:
        """Whether nobody has asked anything."""
        return self._requests.empty()

    def answer(self) -> list[tuple[str, Any]]:
        """All that was asked since the last time."""
        with suppress(BlockingIOError):
            while os.read(self._out, 4096):
                pass
        asked = []
        with suppress(queue.Empty):
            while True:
                asked.append(self._requests.get_nowait())
        return asked

    def sleep(self, seconds: float, files: Iterable[int]) -> None:
        """Until somebody asks, one of *files* can be read, or so many seconds have passed."""
        poll = select.poll()
        for file in (self._out, *files):
            poll.register(file, select.POLLIN)
        poll.poll(None if seconds == math.inf else math.ceil(1000 * seconds))

    def close(self) -> None:
        """Nobody asks any more."""
        for end in (self._in, self._out):
            os.close(end)
