"""Linear layers of all members as one batched matrix product."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from wattline.fusion.lowering.rules import (
    BatchedTensor,
    RuleNotApplicable,
    Ways,
    lowering_rule,
    require_member_rows,
    rewrite_rule,
)


@lowering_rule(F.linear, description="one batched matrix product")
def linear(
    size: int,
    ways: Ways,
    input: Tensor | BatchedTensor,
    weight: Tensor | BatchedTensor,
    bias: Tensor | BatchedTensor | None = None,
) -> BatchedTensor:
    """Compute [B, N, in] × [B, in, out] + [B, 1, out]; for a shared batch [N, in] × [in, B·out]."""
    if not isinstance(weight, BatchedTensor):
        return _linear_shared_weight(input, weight, bias)
    w, b = weight.members_first, None if bias is None else require_member_rows(bias)
    if w.dim() != 3 or (b is not None and b.dim() != 2):
        raise RuleNotApplicable
    if isinstance(input, Tensor):
        y = F.linear(input, w.flatten(0, 1), None if b is None else b.flatten())
        return BatchedTensor(y.unflatten(-1, (size, w.shape[1])), input.dim() - 1)
    x = input.members_first
    flat = x if x.dim() == 3 else x.reshape(size, -1, x.shape[-1])
    y = flat @ w.mT if b is None else torch.baddbmm(b.unsqueeze(1), flat, w.mT)
    return BatchedTensor(y if x.dim() == 3 else y.reshape(*x.shape[:-1], w.shape[1]), 0)


def _linear_shared_weight(
    input: Tensor | BatchedTensor, weight: Tensor, bias: Tensor | BatchedTensor | None
) -> BatchedTensor:
    """Compute a linear layer with shared weights and per-member inputs or biases."""
    if isinstance(input, Tensor):
        raise RuleNotApplicable
    if isinstance(bias, BatchedTensor):
        y = F.linear(input.members_first, weight)
        return BatchedTensor(
            y + bias.members_first.reshape(-1, *[1] * (y.dim() - 2), bias.members_first.shape[-1]), 0
        )
    return BatchedTensor(F.linear(input.members_first, weight, bias), 0)


@rewrite_rule(F.bilinear, description="batched matrix products")
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute Σ x · W · y for every output."""
    y = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
    return y if bias is None else y + bias
