"""Pooling for all members, who stand beside the channels or beside the samples, whichever needs no copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from wattline.fusion.lowering.rules import Declined, Many, Ways, lowers, spread
from wattline.fusion.ops import native


def _pool(function: Callable[..., Any], spatial: int) -> None:
    @lowers(function, how="one pooling over the channels of all members")
    def rule(size: int, ways: Ways, input: Tensor | Many, *knobs: Any, **named: Any) -> Many:
        """Channels [N, B·C, …], or samples [B·N, C, …]."""
        if not isinstance(input, Many) or input.dim != spatial + 2:
            raise Declined
        if ways.last and function in (F.max_pool2d, torch.max_pool2d):
            return _max_pool2d(input, *knobs, **named)
        beside = 1 if input.at == 1 else 0
        x = input.second if beside else input.first
        y = function(x.flatten(beside, beside + 1), *knobs, **named)
        if not isinstance(y, Tensor):  # with indices, which count within a member either way
            return tuple(Many(t.unflatten(beside, (size, -1)), beside) for t in y)  # type: ignore[return-value]
        return Many(y.unflatten(beside, (size, -1)), beside)


def _max_pool2d(
    input: Many,
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
    knobs = (kernel, steps, pair(padding), pair(dilation), ceil_mode)
    both = tuple(Many(t, 1) for t in native.max_pool2d(input.second, *knobs))
    return both if return_indices else both[0]


for _spatial in (1, 2, 3):
    for _name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"):
        _pool(getattr(F, f"{_name}{_spatial}d"), _spatial)
    _pool(getattr(torch, f"max_pool{_spatial}d"), _spatial)


@lowers(F.interpolate, how="one interpolation over the channels of all members")
def interpolate(members: int, ways: Ways, /, input: Tensor | Many, *knobs: Any, **named: Any) -> Many:
    """[N, B·C, …]."""
    if not isinstance(input, Many) or input.dim < 3:
        raise Declined
    y = F.interpolate(input.second.flatten(1, 2), *knobs, **named)
    return Many(y.unflatten(1, (members, -1)), 1)


@lowers(F.grid_sample, how="one sampling over the samples of all members")
def grid_sample(
    size: int, ways: Ways, input: Tensor | Many, grid: Tensor | Many, *knobs: Any, **named: Any
) -> Many:
    """[B·N, C, …]; PyTorch's own way mixes members up where they stand in different dimensions."""
    x, at = spread(input, size).first, spread(grid, size).first
    y = F.grid_sample(x.flatten(0, 1), at.flatten(0, 1), *knobs, **named)
    return Many(y.unflatten(0, (size, -1)), 0)
