"""Per-member vectors, shaped to broadcast over stacked tensors."""

from __future__ import annotations

import torch
from torch import Tensor

_Key = tuple[torch.dtype, torch.device, int]


class MemberVectors:
    """Vectors of length B that multiply tensors of [B, ...].

    They are computed in float64, as torch.optim computes with Python numbers, and rounded once, when they
    meet a tensor. They are stacked in one table, because a cast and a view for each would cost more than the
    arithmetic on small models.
    """

    def __init__(self, *vectors: Tensor) -> None:
        self._table = torch.stack(vectors)
        self._cache: dict[_Key, tuple[Tensor, ...]] = {}

    def aligned_with(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return the vectors, in order, shaped to broadcast over *tensor*."""
        key = (tensor.dtype, tensor.device, tensor.ndim)
        if key not in self._cache:
            rows = self._table.to(device=tensor.device, dtype=tensor.dtype)
            self._cache[key] = rows.view(*rows.shape, *[1] * (tensor.ndim - 1)).unbind(0)
        return self._cache[key]


def align_with(vector: Tensor, tensor: Tensor) -> Tensor:
    """Return one vector, shaped to broadcast over *tensor*; its type is unchanged."""
    return vector.view(-1, *[1] * (tensor.ndim - 1))
