"""Slurm's commands in threads, so that the loop that decides never waits for slurmctld."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from wattline.backend.engine.slurm.cluster_state import SlurmState
from wattline.errors import WattlineError

_THREADS = 4
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.5, 10.0
_IDLE_SHARE = 25.0  # pause between two polls, as a multiple of the time that one took

_logger = logging.getLogger(__name__)


class CommandThreads:
    """Runs functions in threads; their results are handled in the thread that calls `drain`.

    *file* becomes readable when there are results.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="wattline-slurm")
        self._results: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.file, self._wake_file = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()  # the files are open
        self._closed = False

    def run(self, function: Callable[[], Any], on_result: Callable[[Any], None] | None = None) -> None:
        """Run a function; *on_result* gets its result, or the `WattlineError` or `OSError` that it raised."""

        def finish(future: Future[Any]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is not None and not isinstance(error, WattlineError | OSError):
                _logger.error("a command of Slurm failed", exc_info=error)
            if on_result is not None:
                self._results.append((on_result, error if error is not None else future.result()))
                self.wake()

        self._pool.submit(function).add_done_callback(finish)

    def drain(self) -> None:
        """Handle the results so far."""
        with suppress(BlockingIOError):
            while os.read(self.file, 4096):
                pass
        while self._results:
            on_result, result = self._results.popleft()
            on_result(result)

    def wake(self) -> None:
        """Make *file* readable; callable from any thread."""
        with self._lock, suppress(BlockingIOError):
            if not self._closed:
                os.write(self._wake_file, b"\0")

    def close(self) -> None:
        """Let the commands that run end in their own time, and drop those that wait."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.file)
                os.close(self._wake_file)


class StatePoller:
    """Asks Slurm for its state again and again, in a thread; one request for all jobs.

    The pause between two polls is at least 25 times the duration of one, so that polling stays cheap however
    many jobs there are. While slurmctld does not respond, *latest* stays what it was and gets old.
    """

    def __init__(self, read: Callable[[], SlurmState], wake: Callable[[], None]) -> None:
        self._read, self._wake = read, wake
        self.latest = read()
        self.problem = ""  # why the last poll failed; empty: it did not
        self._asked = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="wattline-squeue", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Poll soon: something was changed."""
        self._asked.set()

    def close(self) -> None:
        """End the thread after the poll that runs."""
        self._closing = True
        self._asked.set()

    def _run(self) -> None:
        pause_s = _MIN_INTERVAL_S
        while True:
            self._asked.wait(pause_s)
            if self._closing:
                return
            if self._asked.is_set():  # not more often than this, however often it is asked
                time.sleep(pause_s / 4)
                self._asked.clear()
            began_s = time.monotonic()
            try:
                self.latest = self._read()
                if self.problem:
                    _logger.warning("Slurm responds again")
                self.problem = ""
            except (WattlineError, OSError, ValueError) as error:
                if not self.problem and not self._closing:
                    _logger.warning("Slurm does not respond, all jobs keep their state: %s", error)
                self.problem = str(error)
            took_s = time.monotonic() - began_s
            pause_s = (
                _MIN_INTERVAL_S
                if self.problem
                else min(max(_MIN_INTERVAL_S, _IDLE_SHARE * took_s), _MAX_INTERVAL_S)
            )
            self._wake()
