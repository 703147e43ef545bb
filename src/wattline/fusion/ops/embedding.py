"""Embeddings of all members as one table with the rows of every member."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from wattline.fusion.lowering.rules import BatchedTensor, RuleNotApplicable, Ways, lowering_rule


@lowering_rule(F.embedding, description="one table with the rows of all members")
def embedding(
    size: int,
    ways: Ways,
    input: Tensor | BatchedTensor,
    weight: Tensor | BatchedTensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> BatchedTensor:
    """Look up index + b · V in a table of B · V rows; gradients are dense."""
    if not isinstance(weight, BatchedTensor) or max_norm is not None:
        raise RuleNotApplicable
    table = weight.members_first
    rows = table.shape[1]
    index = input.members_first if isinstance(input, BatchedTensor) else input.expand(size, *input.shape)
    first = torch.arange(size, device=index.device) * rows
    own = index + first.reshape(-1, *[1] * (index.dim() - 1))
    if isinstance(input, BatchedTensor):  # an invalid index must not read another member's row
        own = torch.where((index >= 0) & (index < rows), own, size * rows)
    y = F.embedding(own, table.flatten(0, 1), scale_grad_by_freq=scale_grad_by_freq)
    if padding_idx is not None:
        pads = (index == padding_idx % rows).unsqueeze(-1)
        y = torch.where(pads, y.detach(), y)
    return BatchedTensor(y, 0)
