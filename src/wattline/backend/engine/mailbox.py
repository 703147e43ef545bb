"""Requests from other threads to the thread that runs the loop."""

from __future__ import annotations

import math
import os
import queue
import select
from collections.abc import Iterable
from contextlib import suppress
from typing import Any


class Mailbox:
    """Requests in the order of their arrival, and a sleep that a request ends."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def post(self, request: str, argument: Any = None) -> None:
        """Add a request and end the current or the next `sleep`. Callable from any thread."""
        self._requests.put((request, argument))
        with suppress(BlockingIOError):  # the pipe is full: the sleep ends anyway
            os.write(self._wake_write, b"x")

    @property
    def empty(self) -> bool:
        """True if no request waits."""
        return self._requests.empty()

    def drain(self) -> list[tuple[str, Any]]:
        """Remove and return all requests."""
        with suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass
        requests = []
        with suppress(queue.Empty):
            while True:
                requests.append(self._requests.get_nowait())
        return requests

    def sleep(self, timeout_s: float, files: Iterable[int]) -> None:
        """Return when there is a request, when one of *files* is readable, or after *timeout_s*."""
        poll = select.poll()
        for file in (self._wake_read, *files):
            poll.register(file, select.POLLIN)
        poll.poll(None if timeout_s == math.inf else math.ceil(1000 * timeout_s))

    def close(self) -> None:
        """Close the pipe; no request may be posted any more."""
        for file in (self._wake_write, self._wake_read):
            os.close(file)
