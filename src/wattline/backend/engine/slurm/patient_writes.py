"""Writes to a shared disk that may be full: repeated until they succeed.

Imported by the steps: standard library only.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes milliseconds
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0


def write_patiently(
    what: str, write: Callable[[], T], gives_up: Callable[[], bool] = lambda: False
) -> T | None:
    """Call *write* until it raises no `OSError`, and return its result; None: *gives_up* returned True.

    It also gives up if the current folder, that of the attempt, was deleted.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return write()
        except OSError as error:
            if pause_s == _FIRST_PAUSE_S:
                with suppress(OSError):  # the log is on the same disk
                    print(f"wattline: {what} cannot be written, this is repeated: {error}", file=sys.stderr)
        if gives_up() or os.stat(".").st_nlink == 0:
            return None
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
