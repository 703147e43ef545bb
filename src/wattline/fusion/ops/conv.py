"""Convolutions of all members: a group for each, matrix products where the kernel is one, or one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from wattline.fusion.lowering.rules import Declined, Many, Ways, lowers, rows, spread
from wattline.fusion.ops import native

_HOW = "a group of one convolution for each member"


@lowers(F.conv1d, how=_HOW)
def conv1d(
    size: int, ways: Ways, input: Any, weight: Any, bias: Any = None, *knobs: Any, **named: Any
) -> Many:
    """[N, B·C, L]."""
    return _conv(F.conv1d, size, ways, input, weight, bias, *knobs, **named)


@lowers(F.conv2d, how=_HOW)
def conv2d(
    size: int, ways: Ways, input: Any, weight: Any, bias: Any = None, *knobs: Any, **named: Any
) -> Many:
    """[N, B·C, H, W]."""
    return _conv(F.conv2d, size, ways, input, weight, bias, *knobs, **named)


@lowers(F.conv3d, how=_HOW)
def conv3d(
    size: int, ways: Ways, input: Any, weight: Any, bias: Any = None, *knobs: Any, **named: Any
) -> Many:
    """[N, B·C, D, H, W]."""
    return _conv(F.conv3d, size, ways, input, weight, bias, *knobs, **named)


def _conv(
    function: Callable[..., Tensor],
    size: int,
    ways: Ways,
    input: Tensor | Many,
    weight: Tensor | Many,
    bias: Tensor | Many | None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Many:
    w, b = rows(weight), rows(bias)
    assert w is not None
    logical = input.dim if isinstance(input, Many) else input.dim()
    if logical != w.dim() - 1:  # a single sample without a batch
        raise Declined
    knobs = (stride, padding, dilation)
    if groups == 1 and ways.pointwise and _is_point(w, stride, padding):
        return _point(size, input, w, b)
    if ways.last and function is F.conv2d and not isinstance(padding, str):
        return _last(size, input, w, b, (*knobs, False, 0), groups)
    if isinstance(input, Tensor) and groups == 1:
        x, count = input, 1
    else:
        x = (
            input.second.flatten(1, 2)
            if isinstance(input, Many)
            else input.repeat(1, size, *[1] * (w.dim() - 3))
        )
        count = size * groups
    y = function(x, w.flatten(0, 1), None if b is None else b.flatten(), *knobs, count)
    return Many(y.unflatten(1, (size, -1)), 1)


def _last(
    size: int, input: Tensor | Many, w: Tensor, b: Tensor | None, knobs: tuple[Any, ...], groups: int
) -> Many:
    """Channels last in memory; of a batch that members share, one convolution to all their channels."""
    stride, padding, dilation, transposed, output_padding = knobs
    pairs = (_pair(stride), _pair(padding), _pair(dilation), transposed, _pair(output_padding))
    if isinstance(input, Tensor) and groups == 1 and not transposed:
        bias = None if b is None else b.reshape(1, -1)
        y = native.conv2d(input.unsqueeze(1), w.flatten(0, 1).unsqueeze(0), bias, *pairs, 1)
        return Many(y.squeeze(1).unflatten(1, (size, -1)), 1)
    return Many(native.conv2d(spread(input, size).second, w, b, *pairs, groups), 1)


def _pair(value: Any) -> list[int]:
    return list(value) * (2 // len(value)) if isinstance(value, tuple | list) else [value, value]


def _is_point(w: Tensor, stride: Any, padding: Any) -> bool:
    """Whether a convolution only mixes channels."""

    def all_are(value: Any, wanted: int) -> bool:
        return all(v == wanted for v in (value if isinstance(value, tuple | list) else (value,)))

    still = padding in ("same", "valid") if isinstance(padding, str) else all_are(padding, 0)
    return still and all_are(stride, 1) and all(k == 1 for k in w.shape[3:])


def _point(size: int, input: Tensor | Many, w: Tensor, b: Tensor | None) -> Many:
    """Kernel 1: [B, N·L, in] × [B, in, out], with the channels last in memory."""
    w = w.flatten(2)
    if isinstance(input, Tensor):
        x = input.movedim(1, -1)
        y = F.linear(x, w.flatten(0, 1), None if b is None else b.flatten())
        return Many(y.unflatten(-1, (size, -1)).movedim((-2, -1), (1, 2)), 1)
    x = input.first.movedim(2, -1)
    flat = x.reshape(size, -1, x.shape[-1])
    y = flat @ w.mT if b is None else torch.baddbmm(b.unsqueeze(1), flat, w.mT)
    return Many(y.reshape(*x.shape[:-1], -1).movedim(-1, 2), 0)


@lowers(F.conv_transpose1d, how=_HOW)
def conv_transpose1d(size: int, ways: Ways, *args: Any, **named: Any) -> Many:
    """[N, B·C, L]."""
    return _transposed(F.conv_transpose1d, size, ways, *args, **named)


@lowers(F.conv_transpose2d, how=_HOW)
def conv_transpose2d(size: int, ways: Ways, *args: Any, **named: Any) -> Many:
    """[N, B·C, H, W]."""
    return _transposed(F.conv_transpose2d, size, ways, *args, **named)


@lowers(F.conv_transpose3d, how=_HOW)
def conv_transpose3d(size: int, ways: Ways, *args: Any, **named: Any) -> Many:
    """[N, B·C, D, H, W]."""
    return _transposed(F.conv_transpose3d, size, ways, *args, **named)


def _transposed(
    function: Callable[..., Tensor],
    size: int,
    ways: Ways,
    input: Tensor | Many,
    weight: Tensor | Many,
    bias: Tensor | Many | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Many:
    w, b = rows(weight), rows(bias)
    assert w is not None
    logical = input.dim if isinstance(input, Many) else input.dim()
    if logical != w.dim() - 1:
        raise Declined
    if ways.last and function is F.conv_transpose2d:
        return _last(size, input, w, b, (stride, padding, dilation, True, output_padding), groups)
    x = input.second.flatten(1, 2) if isinstance(input, Many) else input.repeat(1, size, *[1] * (w.dim() - 3))
    bias_ = None if b is None else b.flatten()
    y = function(x, w.flatten(0, 1), bias_, stride, padding, output_padding, size * groups, dilation)
    return Many(y.unflatten(1, (size, -1)), 1)
