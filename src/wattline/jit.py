"""Compile an array loop to machine code: the one place that knows numba.

Signatures are given, so compiling happens at import (and is cached on disk), never inside a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

F1 = types.Array(types.float64, 1, "C", readonly=True)
F2 = types.Array(types.float64, 2, "C", readonly=True)
F3 = types.Array(types.float64, 3, "C", readonly=True)
I1 = types.Array(types.int64, 1, "C", readonly=True)
I2 = types.Array(types.int64, 2, "C", readonly=True)
B1 = types.Array(types.boolean, 1, "C", readonly=True)
_ALIVE: list[object] = []  # machine code lives as long as its dispatcher

INT = types.int64
FLOAT = types.float64
BOOL = types.boolean


def kernel(*arguments: object) -> Callable[[F], F]:
    """Compile a function of these argument types (arrays are read-only inside).

    It is called without numba's look at the types of its arguments, which would cost more than the
    work itself. So only columns of tables go in: these are checked when the table is made.
    """

    def compile_now(function: F) -> F:
        dispatcher = numba.njit(tuple(arguments), cache=True)(function)
        compiled: Any
        (compiled,) = dispatcher.overloads.values()
        _ALIVE.append(dispatcher)
        entry: F = compiled.entry_point
        return entry

    return compile_now


def inner(function: F) -> F:
    """Compile a function that only kernels call."""
    compiled: F = numba.njit(function)
    return compiled


@inner
def find(column: NDArray[np.generic], length: int, value: float) -> int:
    """First of the *length* leading rows of an ascending *column* that is not below *value*."""
    low, high = 0, length
    while low < high:
        middle = (low + high) // 2
        if column[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low
