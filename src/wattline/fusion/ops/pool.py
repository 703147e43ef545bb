"""Pooling, interpolation, grid sampling of all members, folded into channels or samples to avoid a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from wattline.fusion.lowering.rules import (
    BatchedTensor,
    RuleNotApplicable,
    Ways,
    expand_to_members,
    lowering_rule,
)
from wattline.fusion.ops import native


def _register_pool(function: Callable[..., Any], spatial: int) -> None:
    @lowering_rule(function, description="one pooling over the channels of all members")
    def rule(
        size: int, ways: Ways, input: Tensor | BatchedTensor, *options: Any, **kwargs: Any
    ) -> BatchedTensor:
        """Pool channels [N, B·C, …] or samples [B·N, C, …]."""
        if not isinstance(input, BatchedTensor) or input.ndim != spatial + 2:
            raise RuleNotApplicable
        if ways.last and function in (F.max_pool2d, torch.max_pool2d):
            return _max_pool2d(input, *options, **kwargs)
        dim = 1 if input.member_dim == 1 else 0
        x = input.members_second if dim else input.members_first
        y = function(x.flatten(dim, dim + 1), *options, **kwargs)
        if not isinstance(y, Tensor):  # with indices, which count within one member in both layouts
            return tuple(BatchedTensor(t.unflatten(dim, (size, -1)), dim) for t in y)  # type: ignore[return-value]
        return BatchedTensor(y.unflatten(dim, (size, -1)), dim)


def _max_pool2d(
    input: BatchedTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    def pair(value: Any) -> list[int]:
        return list(value) * (2 // len(value)) if isinstance(value, tuple | list) else [value, value]

    kernel = pair(kernel_size)
    steps = pair(stride) if stride is not None and stride != [] else kernel
    options = (kernel, steps, pair(padding), pair(dilation), ceil_mode)
    both = tuple(BatchedTensor(t, 1) for t in native.max_pool2d(input.members_second, *options))
    return both if return_indices else both[0]


for _spatial in (1, 2, 3):
    for _name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"):
        _register_pool(getattr(F, f"{_name}{_spatial}d"), _spatial)
    _register_pool(getattr(torch, f"max_pool{_spatial}d"), _spatial)


@lowering_rule(F.interpolate, description="one interpolation over the channels of all members")
def interpolate(
    members: int, ways: Ways, /, input: Tensor | BatchedTensor, *options: Any, **kwargs: Any
) -> BatchedTensor:
    """Interpolate [N, B·C, …]."""
    if not isinstance(input, BatchedTensor) or input.ndim < 3:
        raise RuleNotApplicable
    y = F.interpolate(input.members_second.flatten(1, 2), *options, **kwargs)
    return BatchedTensor(y.unflatten(1, (members, -1)), 1)


@lowering_rule(F.grid_sample, description="one sampling over the samples of all members")
def grid_sample(
    size: int,
    ways: Ways,
    input: Tensor | BatchedTensor,
    grid: Tensor | BatchedTensor,
    *options: Any,
    **kwargs: Any,
) -> BatchedTensor:
    """Sample [B·N, C, …]; PyTorch's batching mixes members up if their dimensions differ."""
    x, at = expand_to_members(input, size).members_first, expand_to_members(grid, size).members_first
    y = F.grid_sample(x.flatten(0, 1), at.flatten(0, 1), *options, **kwargs)
    return BatchedTensor(y.unflatten(0, (size, -1)), 0)
