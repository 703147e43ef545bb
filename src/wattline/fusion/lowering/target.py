"""Target of lowering: a compiler, which fuses the loops of several operators, or PyTorch's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lowered_for_compiler() -> Iterator[None]:
    """Let rules in the `with` block choose what a compiler makes fast, to trace a step or to repeat it."""
    _entered.append(True)
    try:
        yield
    finally:
        _entered.pop()


def is_for_compiler() -> bool:
    """Return whether rules run inside of `lowered_for_compiler`."""
    return bool(_entered)


_entered: list[bool] = []
