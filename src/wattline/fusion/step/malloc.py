"""Reuse of freed CPU memory from step to step."""

from __future__ import annotations

import ctypes
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MAX_BYTES = 2**31 - 1  # bytes, the largest value that mallopt accepts


@cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 2 GiB of freed memory instead of returning it to the system.

    The tensors between the layers of an array are freed at the end of each step; mapping them again, page by
    page, took a third of a step of small convolutional networks. Does nothing without glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_TRIM_THRESHOLD, _MAX_BYTES)
    mallopt(_MMAP_THRESHOLD, _MAX_BYTES)
