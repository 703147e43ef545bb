"""Views of batched tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wattline.fusion.lowering.rules import BatchedTensor, RuleNotApplicable, Ways, lowering_rule


@lowering_rule(torch.Tensor.view, description="a view, or a copy where members are not laid out for it")
def view(size: int, ways: Ways, input: Tensor | BatchedTensor, *shape: Any, **kwargs: Any) -> BatchedTensor:
    """Reshape; a tensor that is contiguous for one member need not be contiguous when batched."""
    sizes = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else list(shape)
    if not isinstance(input, BatchedTensor) or kwargs or not all(isinstance(n, int) for n in sizes):
        raise RuleNotApplicable
    return BatchedTensor(input.members_first.reshape(size, *sizes), 0)


@lowering_rule(torch.Tensor.view_as, description="a view, or a copy where members are not laid out for it")
def view_as(
    size: int, ways: Ways, input: Tensor | BatchedTensor, other: Tensor | BatchedTensor
) -> BatchedTensor:
    """Reshape to the shape of another tensor."""
    if not isinstance(input, BatchedTensor):
        raise RuleNotApplicable
    shape = other.members_first.shape[1:] if isinstance(other, BatchedTensor) else other.shape
    return BatchedTensor(input.members_first.reshape(size, *shape), 0)
