"""Listeners that are called after every step of an array."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[int], None]] = []


def notify_step(width: int) -> None:
    """Call the listeners after an array of *width* members has made a step."""
    for listener in _listeners:
        listener(width)


@contextmanager
def listen_to_steps(listener: Callable[[int], None]) -> Iterator[None]:
    """Call *listener* with the width of every array that makes a step inside the `with` block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
