"""Embeddings of all members: one table, in which every member has its rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from wattline.fusion.lowering.rules import Declined, Many, Ways, lowers


@lowers(F.embedding, how="one table with the rows of all members")
def embedding(
    size: int,
    ways: Ways,
    input: Tensor | Many,
    weight: Tensor | Many,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Many:
    """Index + b · V in a table of B · V rows; gradients are dense."""
    if not isinstance(weight, Many) or max_norm is not None:
        raise Declined
    table = weight.first
    rows = table.shape[1]
    index = input.first if isinstance(input, Many) else input.expand(size, *input.shape)
    first = torch.arange(size, device=index.device) * rows
    own = index + first.reshape(-1, *[1] * (index.dim() - 1))
    if isinstance(input, Many):  # a wrong index must not find another member's row
        own = torch.where((index >= 0) & (index < rows), own, size * rows)
    y = F.embedding(own, table.flatten(0, 1), scale_grad_by_freq=scale_grad_by_freq)
    if padding_idx is not None:
        pads = (index == padding_idx % rows).unsqueeze(-1)
        y = torch.where(pads, y.detach(), y)
    return Many(y, 0)
