"""Reuse of freed CPU memory from step to step."""

from __future__ import annotations

import ctypes
import mmap
import time
import warnings
from collections.abc import Callable
from functools import cache

import torch

from wattline.fusion.lowering.fallback import FusionWarning

try:
    from resource import RUSAGE_SELF, getrusage
except ImportError:  # Windows
    getrusage = None  # type: ignore[assignment]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MAX_BYTES = 2**31 - 1  # bytes, the largest value that mallopt accepts
_WATCHED_STEPS = 20  # so many are observed; the first ones compile
_HEAVY_STEPS = 3  # in a row, until the loss of time is announced
_MIN_BYTES = 64 << 20  # of newly mapped memory in a heavy step
_FAULT_S = 0.5e-6  # for a page of 4 KiB, measured on one server
_MIN_SHARE = 0.1  # of the time of a heavy step that mapping takes

_is_kept = False


@cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 2 GiB of freed memory instead of returning it to the system.

    The tensors between the layers of an array are freed at the end of each step; mapping them again, page by
    page, took a third of a step of small convolutional networks. Does nothing without glibc.
    """
    global _is_kept
    _is_kept = True
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_TRIM_THRESHOLD, _MAX_BYTES)
    mallopt(_MMAP_THRESHOLD, _MAX_BYTES)


class MappedMemory:
    """Announces once that steps on the CPU map much memory anew, which `keep_freed_memory` avoids."""

    def __init__(self, device: torch.device) -> None:
        self._left = _WATCHED_STEPS if device.type == "cpu" and getrusage is not None else 0
        self._heavy = 0

    def observe(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Make a step, and count the pages that were mapped in it."""
        if self._left == 0 or _is_kept:
            return step()
        self._left -= 1
        faults, start_s = getrusage(RUSAGE_SELF).ru_minflt, time.perf_counter()
        losses = step()
        step_s = time.perf_counter() - start_s
        faults = getrusage(RUSAGE_SELF).ru_minflt - faults
        is_heavy = faults * mmap.PAGESIZE >= _MIN_BYTES and faults * _FAULT_S >= _MIN_SHARE * step_s
        self._heavy = self._heavy + 1 if is_heavy else 0
        if self._heavy == _HEAVY_STEPS:
            self._left = 0
            warnings.warn(
                f"each step maps {faults * mmap.PAGESIZE / 1e6:.0f} MB of memory anew, which takes about "
                f"{faults * _FAULT_S / step_s:.0%} of its time; call fusion.keep_freed_memory() before the "
                "first step (it changes malloc of the whole process)",
                FusionWarning,
                stacklevel=4,
            )
        return losses
