"""Memory of the CPU that is used again from step to step."""

from __future__ import annotations

import ctypes
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_KEPT = 2**31 - 1  # bytes, the most that it takes


@cache
def keep_memory() -> None:
    """From now on glibc keeps up to 2 GiB that are free rather than give them back to the system.

    The tensors between the layers of an array are freed at the end of each step; fetching them anew, page by
    page, took a third of a step of small convolutional networks. Elsewhere than on glibc nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_TRIM_THRESHOLD, _KEPT)
    mallopt(_MMAP_THRESHOLD, _KEPT)
