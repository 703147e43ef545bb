"""The solver of mixed-integer programmes, without what it prints.

HiGHS writes a line of its own to standard output in rare cases, whatever its options say. That would break
the JSON of a command.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()


def solve_quietly(cost: Any, **arguments: Any) -> Any:
    """Return the result of `scipy.optimize.milp`, with nothing printed."""
    from scipy.optimize import milp  # takes a while to import

    with _discard_c_output():
        return milp(cost, **arguments)


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
