"""Warnings of batches that look stacked, and notes to errors from a batch of another device or type."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from wattline.errors import NotFusible
from wattline.fusion.array import FusedArray
from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.step.executed_code import user_stacklevel
from wattline.fusion.torch_internals import tree_flatten


def warn_of_stacked(batch: Any, size: int) -> None:
    """Warn if every tensor of the batch looks as if it had a row for each of *size* members."""
    shapes = [t.shape for t in tree_flatten(batch)[0] if isinstance(t, Tensor)]
    if size > 1 and len(shapes) > 1 and all(len(s) > 1 and s[0] == size for s in shapes):
        warnings.warn(
            f"all tensors of the batch have {size} rows, as many as there are members, but every member "
            "gets all of them: pass members=True if row i belongs to member i",
            FusionWarning,
            stacklevel=user_stacklevel(),
        )


@contextmanager
def explain_errors(array: FusedArray, batch: Sequence[Tensor]) -> Iterator[None]:
    """Add to errors of PyTorch inside the `with` block what may be wrong with the *batch*."""
    try:
        yield
    except NotFusible:
        raise
    except Exception as error:
        parameter = next(array.parameters())
        for tensor in batch:
            if tensor.dim() and tensor.device != parameter.device:
                error.add_note(
                    f"a tensor of the batch is on {tensor.device}, the array on {parameter.device}: "
                    f'move one of them by .to("{parameter.device}")'
                )
                break
        if batch and "dtype" in str(error) and batch[0].dtype != parameter.dtype:
            error.add_note(
                f"the first tensor of the batch is of type {batch[0].dtype}, the parameters of the array of "
                f"{parameter.dtype}: convert it by .to({parameter.dtype})"
            )
        raise
