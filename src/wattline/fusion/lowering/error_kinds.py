"""Kinds of errors in a forward: those of fusing, after which members run one by one, and all others."""

from __future__ import annotations

import torch

from wattline.errors import NotFusible
from wattline.fusion.torch_internals import StopRecomputation

_ALLOCATOR = ("not enough memory", "can't allocate memory")  # of the CPU, which raises RuntimeError


def is_fusing_error(error: Exception) -> bool:
    """Return whether *error* may come from fusing, so that running members one by one may help."""
    return not isinstance(error, NotFusible | StopRecomputation) and not is_out_of_memory(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocator of PyTorch has raised *error*."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _ALLOCATOR)
