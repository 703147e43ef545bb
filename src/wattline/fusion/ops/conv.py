"""Convolutions of all members: grouped, as matrix products for kernel 1, or channels-last."""

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
    require_member_rows,
)
from wattline.fusion.ops import native

_DESCRIPTION = "a group of one convolution for each member"


@lowering_rule(F.conv1d, description=_DESCRIPTION)
def conv1d(
    size: int, ways: Ways, input: Any, weight: Any, bias: Any = None, *options: Any, **kwargs: Any
) -> BatchedTensor:
    """Compute conv1d of all members as [N, B·C, L]."""
    return _conv(F.conv1d, size, ways, input, weight, bias, *options, **kwargs)


@lowering_rule(F.conv2d, description=_DESCRIPTION)
def conv2d(
    size: int, ways: Ways, input: Any, weight: Any, bias: Any = None, *options: Any, **kwargs: Any
) -> BatchedTensor:
    """Compute conv2d of all members as [N, B·C, H, W]."""
    return _conv(F.conv2d, size, ways, input, weight, bias, *options, **kwargs)


@lowering_rule(F.conv3d, description=_DESCRIPTION)
def conv3d(
    size: int, ways: Ways, input: Any, weight: Any, bias: Any = None, *options: Any, **kwargs: Any
) -> BatchedTensor:
    """Compute conv3d of all members as [N, B·C, D, H, W]."""
    return _conv(F.conv3d, size, ways, input, weight, bias, *options, **kwargs)


def _conv(
    function: Callable[..., Tensor],
    size: int,
    ways: Ways,
    input: Tensor | BatchedTensor,
    weight: Tensor | BatchedTensor,
    bias: Tensor | BatchedTensor | None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> BatchedTensor:
    w, b = require_member_rows(weight), require_member_rows(bias)
    assert w is not None
    logical = input.ndim if isinstance(input, BatchedTensor) else input.dim()
    if logical != w.dim() - 1:  # a single sample without a batch
        raise RuleNotApplicable
    options = (stride, padding, dilation)
    if groups == 1 and ways.pointwise and _is_pointwise(w, stride, padding):
        return _conv_pointwise(size, input, w, b)
    if ways.last and function is F.conv2d and not isinstance(padding, str):
        return _conv_channels_last(size, input, w, b, (*options, False, 0), groups)
    if isinstance(input, Tensor) and groups == 1:
        x, count = input, 1
    else:
        x = (
            input.members_second.flatten(1, 2)
            if isinstance(input, BatchedTensor)
            else input.repeat(1, size, *[1] * (w.dim() - 3))
        )
        count = size * groups
    y = function(x, w.flatten(0, 1), None if b is None else b.flatten(), *options, count)
    return BatchedTensor(y.unflatten(1, (size, -1)), 1)


def _conv_channels_last(
    size: int,
    input: Tensor | BatchedTensor,
    w: Tensor,
    b: Tensor | None,
    options: tuple[Any, ...],
    groups: int,
) -> BatchedTensor:
    """Compute with channels last in memory; a shared batch needs one convolution to all channels."""
    stride, padding, dilation, transposed, output_padding = options
    input, w, b = _cast_like_autocast(input, w, b)
    pairs = (_pair(stride), _pair(padding), _pair(dilation), transposed, _pair(output_padding))
    if isinstance(input, Tensor) and groups == 1 and not transposed:
        bias = None if b is None else b.reshape(1, -1)
        y = native.conv2d(input.unsqueeze(1), w.flatten(0, 1).unsqueeze(0), bias, *pairs, 1)
        return BatchedTensor(y.squeeze(1).unflatten(1, (size, -1)), 1)
    return BatchedTensor(
        native.conv2d(expand_to_members(input, size).members_second, w, b, *pairs, groups), 1
    )


def _cast_like_autocast(
    input: Tensor | BatchedTensor, w: Tensor, b: Tensor | None
) -> tuple[Tensor | BatchedTensor, Tensor, Tensor | None]:
    """Return the arguments in the type in which autocast, which knows no other operators, convolves."""
    device = w.device.type
    if not torch.is_autocast_enabled(device) or w.dtype == torch.float64:
        return input, w, b
    kind = torch.get_autocast_dtype(device)
    if isinstance(input, BatchedTensor):
        input = input._replace(values=input.values.to(kind))
    else:
        input = input.to(kind)
    return input, w.to(kind), None if b is None else b.to(kind)


def _pair(value: Any) -> list[int]:
    return list(value) * (2 // len(value)) if isinstance(value, tuple | list) else [value, value]


def _is_pointwise(w: Tensor, stride: Any, padding: Any) -> bool:
    """Return whether a convolution only mixes channels."""

    def all_are(value: Any, wanted: int) -> bool:
        return all(v == wanted for v in (value if isinstance(value, tuple | list) else (value,)))

    still = padding in ("same", "valid") if isinstance(padding, str) else all_are(padding, 0)
    return still and all_are(stride, 1) and all(k == 1 for k in w.shape[3:])


def _conv_pointwise(size: int, input: Tensor | BatchedTensor, w: Tensor, b: Tensor | None) -> BatchedTensor:
    """Compute kernel 1 as [B, N·L, in] × [B, in, out], with channels last in memory."""
    w = w.flatten(2)
    if isinstance(input, Tensor):
        x = input.movedim(1, -1)
        y = F.linear(x, w.flatten(0, 1), None if b is None else b.flatten())
        return BatchedTensor(y.unflatten(-1, (size, -1)).movedim((-2, -1), (1, 2)), 1)
    x = input.members_first.movedim(2, -1)
    flat = x.reshape(size, -1, x.shape[-1])
    y = flat @ w.mT if b is None else torch.baddbmm(b.unsqueeze(1), flat, w.mT)
    return BatchedTensor(y.reshape(*x.shape[:-1], -1).movedim(-1, 2), 0)


@lowering_rule(F.conv_transpose1d, description=_DESCRIPTION)
def conv_transpose1d(size: int, ways: Ways, *args: Any, **kwargs: Any) -> BatchedTensor:
    """Compute conv_transpose1d of all members as [N, B·C, L]."""
    return _conv_transpose(F.conv_transpose1d, size, ways, *args, **kwargs)


@lowering_rule(F.conv_transpose2d, description=_DESCRIPTION)
def conv_transpose2d(size: int, ways: Ways, *args: Any, **kwargs: Any) -> BatchedTensor:
    """Compute conv_transpose2d of all members as [N, B·C, H, W]."""
    return _conv_transpose(F.conv_transpose2d, size, ways, *args, **kwargs)


@lowering_rule(F.conv_transpose3d, description=_DESCRIPTION)
def conv_transpose3d(size: int, ways: Ways, *args: Any, **kwargs: Any) -> BatchedTensor:
    """Compute conv_transpose3d of all members as [N, B·C, D, H, W]."""
    return _conv_transpose(F.conv_transpose3d, size, ways, *args, **kwargs)


def _conv_transpose(
    function: Callable[..., Tensor],
    size: int,
    ways: Ways,
    input: Tensor | BatchedTensor,
    weight: Tensor | BatchedTensor,
    bias: Tensor | BatchedTensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> BatchedTensor:
    w, b = require_member_rows(weight), require_member_rows(bias)
    assert w is not None
    logical = input.ndim if isinstance(input, BatchedTensor) else input.dim()
    if logical != w.dim() - 1:
        raise RuleNotApplicable
    if ways.last and function is F.conv_transpose2d:
        return _conv_channels_last(
            size, input, w, b, (stride, padding, dilation, True, output_padding), groups
        )
    x = (
        input.members_second.flatten(1, 2)
        if isinstance(input, BatchedTensor)
        else input.repeat(1, size, *[1] * (w.dim() - 3))
    )
    bias_ = None if b is None else b.flatten()
    y = function(x, w.flatten(0, 1), bias_, stride, padding, output_padding, size * groups, dilation)
    return BatchedTensor(y.unflatten(1, (size, -1)), 1)
