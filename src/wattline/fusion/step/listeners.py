"""Who is told of every step that an array makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[int], None]] = []


def beat(width: int) -> None:
    """An array of *width* members has made a step."""
    for listener in _listeners:
        listener(width)


@contextmanager
def listening(listener: Callable[[int], None]) -> Iterator[None]:
    """While this is open, *listener* gets the width of every array that makes a step."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
