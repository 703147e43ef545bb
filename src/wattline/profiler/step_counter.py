"""How a job tells that it has done a step, when somebody wants to know.

    for batch in steps(loader):
        ...

`wattline profile` sets WATTLINE_STEPS to a pipe, into which a job writes one byte per step. Without it
`steps` hands back the loader itself, so that a job that is not profiled pays nothing. Nothing here
stops a job: whoever listened may have left. Imports nothing but the standard library.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

PIPE = "WATTLINE_STEPS"
"""The environment variable with the path into which a job writes a byte for each step."""

CPUS = "WATTLINE_CPUS"
"""The environment variable with how many cores a job may use, for the workers of its loader."""

T = TypeVar("T")


def steps(loader: Iterable[T]) -> Iterable[T]:
    """The batches of *loader*; a step is told whenever the next one is asked for."""
    return _Told(loader) if os.environ.get(PIPE) else loader


def step(count: int = 1) -> None:
    """Tell that *count* steps are done: for loops that have no loader."""
    global _teller
    path = os.environ.get(PIPE)
    if not path:
        return
    if _teller is None or _teller.pid != os.getpid():
        _teller = _Teller(path)
    _teller.tell(count)


def cpus() -> int:
    """How many cores this job may use: what it was given when profiled, else what it may run on."""
    given = os.environ.get(CPUS, "")
    if given.isdigit() and int(given):
        return int(given)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Told(Generic[T]):
    """A loader whose steps are told; in all else the loader itself."""

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


class _Teller:
    """The writing end of the pipe, of one process; of several ranks only the first one tells."""

    def __init__(self, path: str) -> None:
        self.pid = os.getpid()
        self._owed = 0
        self._pipe = -1
        if os.environ.get("RANK", "0") != "0":
            return
        with suppress(OSError):  # nobody listens
            self._pipe = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))

    def tell(self, count: int) -> None:
        if self._pipe < 0:
            return
        self._owed += count
        try:
            self._owed -= os.write(self._pipe, b"." * min(self._owed, 4096))
        except BlockingIOError:
            pass  # the pipe is full: told with the next one
        except OSError:
            os.close(self._pipe)
            self._pipe = -1


_teller: _Teller | None = None
