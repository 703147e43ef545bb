"""Work on one trace, each piece done once, by as many processes as were asked for."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from threading import Lock
from typing import Any, Self, TypeVar

from wattline.trace import Trace

Result = TypeVar("Result")
_held: list[Trace] = []  # in a worker: the trace, which is sent once and not with every piece of work


class Pool:
    """Calls functions of a trace and hashable words; what was asked before is not done again.

    With one process, work is done here when its result is wanted. *progress* is called with the number of
    pieces that are done.
    """

    def __init__(self, trace: Trace, processes: int, progress: Callable[[float], None]) -> None:
        self._trace = trace
        self._progress = progress
        self.count = 0
        self._done: dict[Hashable, Future[Any]] = {}
        self._lock = Lock()
        self._workers = (
            ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _hold, (trace,))
            if processes > 1
            else None
        )
        self.processes = processes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._workers is not None:
            self._workers.shutdown(cancel_futures=True)

    def get(self, work: Callable[..., Result], *words: Hashable) -> Result:
        """What `work(trace, *words)` answers."""
        found: Result = self._start(work, words).result()
        return found

    def each(self, work: Callable[..., Result], rows: Sequence[tuple[Hashable, ...]]) -> Iterator[Result]:
        """The same for many rows of words, in their order."""
        if self._workers is not None:
            for words in rows:
                self._start(work, words)
        for words in rows:
            yield self.get(work, *words)

    def _start(self, work: Callable[..., Result], words: tuple[Hashable, ...]) -> Future[Result]:
        with self._lock:
            future = self._done.get((work, words))
            if future is not None:
                return future
            if self._workers is not None:
                future = self._workers.submit(_call, work, words)
            else:
                future = Future()
                future.set_result(work(self._trace, *words))
            self._done[work, words] = future
            future.add_done_callback(self._note)
            return future

    def _note(self, future: Future[Any]) -> None:
        self.count += 1
        self._progress(self.count)


def _hold(trace: Trace) -> None:
    _held.append(trace)


def _call(work: Callable[..., Result], words: tuple[Hashable, ...]) -> Result:
    return work(_held[0], *words)
