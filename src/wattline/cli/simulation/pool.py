"""Process pool that calls functions of one trace and remembers their results."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from threading import Lock
from typing import Any, Self, TypeVar

from wattline.trace import Trace

Result = TypeVar("Result")
_worker_trace: list[Trace] = []  # in a worker process; sent once and not with every call


class SimulationPool:
    """Calls of functions of a trace and hashable arguments; the same call is made only once.

    With one process, a call is made in this process when its result is wanted. *progress* is called
    with the number of finished calls.
    """

    def __init__(self, trace: Trace, processes: int, progress: Callable[[float], None]) -> None:
        self._trace = trace
        self._progress = progress
        self.count = 0
        self._futures: dict[Hashable, Future[Any]] = {}
        self._lock = Lock()
        self._workers = (
            ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _set_worker_trace, (trace,))
            if processes > 1
            else None
        )
        self.processes = processes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._workers is not None:
            self._workers.shutdown(cancel_futures=True)

    def call(self, function: Callable[..., Result], *arguments: Hashable) -> Result:
        """Return the result of `function(trace, *arguments)`."""
        result: Result = self._submit(function, arguments).result()
        return result

    def map(self, function: Callable[..., Result], rows: Sequence[tuple[Hashable, ...]]) -> Iterator[Result]:
        """Yield the results for all *rows* of arguments, in their order."""
        if self._workers is not None:
            for arguments in rows:
                self._submit(function, arguments)
        for arguments in rows:
            yield self.call(function, *arguments)

    def _submit(self, function: Callable[..., Result], arguments: tuple[Hashable, ...]) -> Future[Result]:
        with self._lock:
            future = self._futures.get((function, arguments))
            if future is not None:
                return future
            if self._workers is not None:
                future = self._workers.submit(_call_with_trace, function, arguments)
            else:
                future = Future()
                future.set_result(function(self._trace, *arguments))
            self._futures[function, arguments] = future
            future.add_done_callback(self._count_call)
            return future

    def _count_call(self, future: Future[Any]) -> None:
        self.count += 1
        self._progress(self.count)


def _set_worker_trace(trace: Trace) -> None:
    _worker_trace.append(trace)


def _call_with_trace(function: Callable[..., Result], arguments: tuple[Hashable, ...]) -> Result:
    return function(_worker_trace[0], *arguments)
