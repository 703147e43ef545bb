"""Counting of training steps for `wattline profile`, called in the profiled script.

    for batch in steps(loader):
        ...

`wattline profile` sets WATTLINE_STEPS to a pipe, to which the job writes one byte per step. Without it
`steps` returns the loader itself, at no cost. Errors of the pipe never stop the job, since the profiler may
have ended. Imports only the standard library.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

PIPE = "WATTLINE_STEPS"
"""Environment variable with the path of the pipe to which a job writes a byte per step."""

CPUS = "WATTLINE_CPUS"
"""Environment variable with the number of cores of a job, for the workers of its data loader."""

T = TypeVar("T")


def steps(loader: Iterable[T]) -> Iterable[T]:
    """Return *loader*, counting a step whenever the next batch is requested."""
    return _CountingLoader(loader) if os.environ.get(PIPE) else loader


def step(count: int = 1) -> None:
    """Count *count* steps, in loops without a loader."""
    global _pipe_writer
    path = os.environ.get(PIPE)
    if not path:
        return
    if _pipe_writer is None or _pipe_writer.pid != os.getpid():
        _pipe_writer = _PipeWriter(path)
    _pipe_writer.write(count)


def cpus() -> int:
    """Return the number of cores this job may use: from the profiler if set, else by CPU affinity."""
    value = os.environ.get(CPUS, "")
    if value.isdigit() and int(value):
        return int(value)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _CountingLoader(Generic[T]):
    """Wrapper of a loader that counts steps and passes all else through."""

    def __init__(self, loader: Iterable[T]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[T]:
        for batch in self._loader:
            yield batch
            step()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _PipeWriter:
    """Writing end of the pipe in one process; of several ranks only the first writes."""

    def __init__(self, path: str) -> None:
        self.pid = os.getpid()
        self._pending = 0
        self._pipe = -1
        if os.environ.get("RANK", "0") != "0":
            return
        with suppress(OSError):  # the pipe has no reader
            self._pipe = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))

    def write(self, count: int) -> None:
        if self._pipe < 0:
            return
        self._pending += count
        try:
            self._pending -= os.write(self._pipe, b"." * min(self._pending, 4096))
        except BlockingIOError:
            pass  # the pipe is full: written with the next step
        except OSError:
            os.close(self._pipe)
            self._pipe = -1


_pipe_writer: _PipeWriter | None = None
