"""Views of all members."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wattline.fusion.lowering.rules import Declined, Many, Ways, lowers


@lowers(torch.Tensor.view, how="a view, or a copy where members are not laid out for it")
def view(size: int, ways: Ways, input: Tensor | Many, *shape: Any, **named: Any) -> Many:
    """What is contiguous for a member alone need not be among others."""
    sizes = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else list(shape)
    if not isinstance(input, Many) or named or not all(isinstance(n, int) for n in sizes):
        raise Declined
    return Many(input.first.reshape(size, *sizes), 0)


@lowers(torch.Tensor.view_as, how="a view, or a copy where members are not laid out for it")
def view_as(size: int, ways: Ways, input: Tensor | Many, other: Tensor | Many) -> Many:
    """The same with the shape of another."""
    if not isinstance(input, Many):
        raise Declined
    shape = other.first.shape[1:] if isinstance(other, Many) else other.shape
    return Many(input.first.reshape(size, *shape), 0)
