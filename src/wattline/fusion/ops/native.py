"""Images with their channels last in memory, [N, H, W, B, C], through PyTorch's own operators.

They are opaque to the compiler: left to itself it lays out what lies between two convolutions anew, and its
code for the way back of a pooling is not vectorised. They see members as a dimension of its own,
[N, B, C, H, W], so that nothing has to be folded outside of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _fold(x: Tensor) -> Tensor:
    """[N, B·C, H, W], channels last."""
    return x.flatten(1, 2).contiguous(memory_format=torch.channels_last)


def _unfold(y: Tensor, size: int) -> Tensor:
    """[N, B, C, H, W] of what was folded."""
    return y.contiguous(memory_format=torch.channels_last).unflatten(1, (size, -1))


def _empty_like(x: Tensor) -> Tensor:
    n, b, c, h, w = x.shape
    last = torch.empty(n, b * c, h, w, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    return last.unflatten(1, (b, -1))


@torch.library.custom_op("wattline::conv2d", mutates_args=())
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor:
    """A convolution of each member: *x* [N, B, C, H, W], *weight* [B, O, C, …], *bias* [B, O]."""
    size = weight.shape[0]
    flat = None if bias is None else bias.flatten()
    knobs = (stride, padding, dilation, transposed, output_padding, groups * size)
    return _unfold(aten.convolution(_fold(x), weight.flatten(0, 1), flat, *knobs), size)


@conv2d.register_fake
def _(x: Tensor, weight: Tensor, bias: Any, *knobs: Any) -> Tensor:
    return conv2d._init_fn(x, weight, bias, *knobs)


@torch.library.custom_op("wattline::conv2d_backward", mutates_args=())
def _conv2d_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    size = weight.shape[0]
    knobs = (stride, padding, dilation, transposed, output_padding, groups * size, needs)
    bias = [grad.shape[1] * grad.shape[2]]
    dx, dw, db = aten.convolution_backward(_fold(grad), _fold(x), weight.flatten(0, 1), bias, *knobs)
    return (
        _unfold(dx, size) if needs[0] else grad.new_empty(0),
        dw.contiguous().unflatten(0, (size, -1)) if needs[1] else grad.new_empty(0),
        db.contiguous().unflatten(0, (size, -1)) if needs[2] else grad.new_empty(0),
    )


@_conv2d_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, *knobs: Any) -> tuple[Tensor, Tensor, Tensor]:
    dx = _empty_like(x)
    needs, none = knobs[-1], grad.new_empty(0)
    return (
        dx if needs[0] else none,
        torch.empty_like(weight, memory_format=torch.contiguous_format) if needs[1] else none,
        grad.new_empty(grad.shape[1:3]) if needs[2] else none,
    )


def _keep_conv(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, *ctx.knobs = inputs
    ctx.save_for_backward(x, weight)
    ctx.needs = [
        ctx.needs_input_grad[0],
        ctx.needs_input_grad[1],
        bias is not None and ctx.needs_input_grad[2],
    ]


def _back_conv(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    found = _conv2d_backward(grad, *ctx.saved_tensors, *ctx.knobs, ctx.needs)
    return *(d if need else None for d, need in zip(found, ctx.needs, strict=True)), *[None] * len(ctx.knobs)


conv2d.register_autograd(_back_conv, setup_context=_keep_conv)


@torch.library.custom_op("wattline::max_pool2d", mutates_args=())
def max_pool2d(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil: bool
) -> tuple[Tensor, Tensor]:
    """Maxima and their places: *x* [N, B, C, H, W]."""
    found = aten.max_pool2d_with_indices(_fold(x), kernel, stride, padding, dilation, ceil)
    return _unfold(found[0], x.shape[1]), _unfold(found[1], x.shape[1])


@max_pool2d.register_fake
def _(x: Tensor, *knobs: Any) -> tuple[Tensor, Tensor]:
    return max_pool2d._init_fn(x, *knobs)


@torch.library.custom_op("wattline::max_pool2d_backward", mutates_args=())
def _max_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil: bool,
    places: Tensor,
) -> Tensor:
    knobs = (kernel, stride, padding, dilation, ceil, _fold(places))
    return _unfold(aten.max_pool2d_with_indices_backward(_fold(grad), _fold(x), *knobs), x.shape[1])


@_max_pool2d_backward.register_fake
def _(grad: Tensor, x: Tensor, *knobs: Any) -> Tensor:
    return _empty_like(x)


def _keep_pool(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, *ctx.knobs = inputs
    ctx.save_for_backward(x, output[1])
    ctx.mark_non_differentiable(output[1])


def _back_pool(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    x, places = ctx.saved_tensors
    return _max_pool2d_backward(grad, x, *ctx.knobs, places), *[None] * len(ctx.knobs)


max_pool2d.register_autograd(_back_pool, setup_context=_keep_pool)
