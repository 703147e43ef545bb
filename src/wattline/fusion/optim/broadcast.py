"""Per-member numbers in the shape in which they broadcast over stacked tensors."""

from __future__ import annotations

import torch
from torch import Tensor

_Key = tuple[torch.dtype, torch.device, int]


class Spread:
    """Vectors of length B that multiply tensors of [B, ...].

    They are computed in float64, as torch.optim computes with Python's numbers, and rounded once, where they
    meet a tensor. All of them travel as one table, because a cast and a view for each would cost more than
    the arithmetic on small models.
    """

    def __init__(self, *vectors: Tensor) -> None:
        self._table = torch.stack(vectors)
        self._made: dict[_Key, tuple[Tensor, ...]] = {}

    def over(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """The vectors, in order, as they broadcast over *tensor*."""
        key = (tensor.dtype, tensor.device, tensor.ndim)
        if key not in self._made:
            rows = self._table.to(device=tensor.device, dtype=tensor.dtype)
            self._made[key] = rows.view(*rows.shape, *[1] * (tensor.ndim - 1)).unbind(0)
        return self._made[key]


def spread(vector: Tensor, tensor: Tensor) -> Tensor:
    """One vector as it broadcasts over *tensor*, its own type kept."""
    return vector.view(-1, *[1] * (tensor.ndim - 1))
