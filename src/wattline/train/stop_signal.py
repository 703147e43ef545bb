"""Handling of the signal by which a scheduler asks a job to yield."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any


class StopSignal:
    """Turns the first stop signal into a request to checkpoint and exit.

    Slurm signals every process of a job, and so does the job's supervisor: more signals within *grace_s* of
    the first are ignored. A later one has the previous effect, and so has the first if *can_yield* returns
    False.
    """

    def __init__(self, number: signal.Signals, can_yield: Callable[[], bool], grace_s: float = 0.0) -> None:
        self._number, self._can_yield, self._grace_s = number, can_yield, grace_s
        self._requested_s = 0.0
        self._pid = os.getpid()
        self._previous: Any = None
        self.is_requested = False

    def install(self) -> None:
        """Install the handler; does nothing outside the main thread, where Python does not allow it."""
        with suppress(ValueError):
            self._previous = signal.signal(self._number, self._handle)

    def remove(self) -> None:
        """Restore the previous handler, unless another one has been installed since."""
        with suppress(ValueError):
            if self._previous is not None and signal.getsignal(self._number) == self._handle:
                signal.signal(self._number, self._previous)

    def send_again(self) -> None:
        """Send the signal to this process, for a request that no training loop has seen."""
        os.kill(os.getpid(), self._number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid and self._can_yield():
            if not self.is_requested:
                self.is_requested, self._requested_s = True, time.monotonic()
                return
            if time.monotonic() - self._requested_s < self._grace_s:
                return
        signal.signal(number, self._previous if self._previous is not None else signal.SIG_DFL)
        os.kill(os.getpid(), number)
