"""The solver of mixed-integer programmes, without what it prints, for costs in any unit.

HiGHS writes a line of its own to standard output in rare cases, whatever its options say. That would break
the JSON of a command. It also ends the search within 1e-6 of the best cost, and takes smaller differences
for none: with costs of cents jobs would wait beside free GPUs.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_LARGEST_COST = 2.0**13  # that the solver gets; far above its tolerances, and sums of it are exact enough
_lock = threading.Lock()


def solve_quietly(cost: Any, **arguments: Any) -> Any:
    """Return the result of `scipy.optimize.milp`, with nothing printed and the costs scaled.

    `fun` and `mip_dual_bound` are in the unit of *cost*.
    """
    from scipy.optimize import milp  # takes a while to import

    largest = float(np.abs(cost).max(initial=0.0))
    scale = 1.0
    if largest > 0:
        scale = 2.0 ** math.floor(math.log2(_LARGEST_COST / largest))  # a power of two changes no digit
    with _discard_c_output():
        result = milp(np.asarray(cost) * scale, **arguments)
    for name in ("fun", "mip_dual_bound"):
        if result[name] is not None:
            result[name] = result[name] / scale
    return result


@contextmanager
def _discard_c_output() -> Iterator[None]:
    """Discard what is written to standard output within the block, by any thread of this process.

    The service logs to standard error, and commands print from the thread that decides.
    """
    flush = ctypes.CDLL(None).fflush
    with _lock:
        try:
            kept = os.dup(1)
        except OSError:  # standard output is closed
            yield
            return
        flush(None)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 1)
            yield
        finally:
            flush(None)
            os.dup2(kept, 1)
            os.close(kept)
            os.close(nowhere)
