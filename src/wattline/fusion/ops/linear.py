"""Linear layers of all members: one batched matrix product."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from wattline.fusion.lowering.rules import Declined, Many, Ways, lowers, rewrites, rows


@lowers(F.linear, how="one batched matrix product")
def linear(
    size: int, ways: Ways, input: Tensor | Many, weight: Tensor | Many, bias: Tensor | Many | None = None
) -> Many:
    """[B, N, in] × [B, in, out] + [B, 1, out]; of a batch that members share, [N, in] × [in, B·out]."""
    if not isinstance(weight, Many):
        return _frozen(input, weight, bias)
    w, b = weight.first, None if bias is None else rows(bias)
    if w.dim() != 3 or (b is not None and b.dim() != 2):
        raise Declined
    if isinstance(input, Tensor):
        y = F.linear(input, w.flatten(0, 1), None if b is None else b.flatten())
        return Many(y.unflatten(-1, (size, w.shape[1])), input.dim() - 1)
    x = input.first
    flat = x.reshape(size, -1, x.shape[-1])
    y = flat @ w.mT if b is None else torch.baddbmm(b.unsqueeze(1), flat, w.mT)
    return Many(y.reshape(*x.shape[:-1], w.shape[1]), 0)


def _frozen(input: Tensor | Many, weight: Tensor, bias: Tensor | Many | None) -> Many:
    """Of weights that members share; their inputs or biases are their own."""
    if isinstance(input, Tensor):
        raise Declined
    if isinstance(bias, Many):
        y = F.linear(input.first, weight)
        return Many(y + bias.first.reshape(-1, *[1] * (y.dim() - 2), bias.first.shape[-1]), 0)
    return Many(F.linear(input.first, weight, bias), 0)


@rewrites(F.bilinear, how="batched matrix products")
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Σ x · W · y for every output."""
    y = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
    return y if bias is None else y + bias
