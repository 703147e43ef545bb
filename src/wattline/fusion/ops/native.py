"""Operators on channels-last images [N, H, W, B, C], implemented with PyTorch's own kernels.

They are opaque to the compiler, which would otherwise change the memory layout between two convolutions
and does not vectorise the backward of pooling. Members are a separate dimension of their arguments,
[N, B, C, H, W], so that nothing has to be folded outside of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _fold(x: Tensor) -> Tensor:
    """Return [N, B·C, H, W], channels last."""
    return x.flatten(1, 2).contiguous(memory_format=torch.channels_last)


def _unfold(y: Tensor, size: int) -> Tensor:
    """Return [N, B, C, H, W] of a folded tensor."""
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
    """Compute a convolution of each member: *x* [N, B, C, H, W], *weight* [B, O, C, …], *bias* [B, O]."""
    size = weight.shape[0]
    flat = None if bias is None else bias.flatten()
    options = (stride, padding, dilation, transposed, output_padding, groups * size)
    return _unfold(aten.convolution(_fold(x), weight.flatten(0, 1), flat, *options), size)


@conv2d.register_fake
def _(x: Tensor, weight: Tensor, bias: Any, *options: Any) -> Tensor:
    return conv2d._init_fn(x, weight, bias, *options)


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
    options = (stride, padding, dilation, transposed, output_padding, groups * size, needs)
    bias = [grad.shape[1] * grad.shape[2]]
    dx, dw, db = aten.convolution_backward(_fold(grad), _fold(x), weight.flatten(0, 1), bias, *options)
    return (
        _unfold(dx, size) if needs[0] else grad.new_empty(0),
        dw.contiguous().unflatten(0, (size, -1)) if needs[1] else grad.new_empty(0),
        db.contiguous().unflatten(0, (size, -1)) if needs[2] else grad.new_empty(0),
    )


@_conv2d_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
    dx = _empty_like(x)
    needs, none = options[-1], grad.new_empty(0)
    return (
        dx if needs[0] else none,
        torch.empty_like(weight, memory_format=torch.contiguous_format) if needs[1] else none,
        grad.new_empty(grad.shape[1:3]) if needs[2] else none,
    )


def _setup_conv_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, *ctx.options = inputs
    ctx.save_for_backward(x, weight)
    ctx.needs = [
        ctx.needs_input_grad[0],
        ctx.needs_input_grad[1],
        bias is not None and ctx.needs_input_grad[2],
    ]


def _conv_autograd(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    # Only PyTorch's own operator can be differentiated again.
    backward: Any = _conv2d_backward._init_fn if torch.is_grad_enabled() else _conv2d_backward
    grads = backward(grad, *ctx.saved_tensors, *ctx.options, ctx.needs)
    return *(d if need else None for d, need in zip(grads, ctx.needs, strict=True)), *[None] * len(
        ctx.options
    )


conv2d.register_autograd(_conv_autograd, setup_context=_setup_conv_context)


@torch.library.custom_op("wattline::max_pool2d", mutates_args=())
def max_pool2d(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil: bool
) -> tuple[Tensor, Tensor]:
    """Return maxima and their indices for *x* [N, B, C, H, W]."""
    outputs = aten.max_pool2d_with_indices(_fold(x), kernel, stride, padding, dilation, ceil)
    return _unfold(outputs[0], x.shape[1]), _unfold(outputs[1], x.shape[1])


@max_pool2d.register_fake
def _(x: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return max_pool2d._init_fn(x, *options)


@torch.library.custom_op("wattline::max_pool2d_backward", mutates_args=())
def _max_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil: bool,
    indices: Tensor,
) -> Tensor:
    return _compute_max_pool2d_backward(grad, x, kernel, stride, padding, dilation, ceil, indices)


def _compute_max_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil: bool,
    indices: Tensor,
) -> Tensor:
    options = (kernel, stride, padding, dilation, ceil, _fold(indices))
    return _unfold(aten.max_pool2d_with_indices_backward(_fold(grad), _fold(x), *options), x.shape[1])


@_max_pool2d_backward.register_fake
def _(grad: Tensor, x: Tensor, *options: Any) -> Tensor:
    return _empty_like(x)


def _setup_pool_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, *ctx.options = inputs
    ctx.save_for_backward(x, output[1])
    ctx.mark_non_differentiable(output[1])


def _pool_autograd(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    x, indices = ctx.saved_tensors
    backward: Any = _compute_max_pool2d_backward if torch.is_grad_enabled() else _max_pool2d_backward
    return backward(grad, x, *ctx.options, indices), *[None] * len(ctx.options)


max_pool2d.register_autograd(_pool_autograd, setup_context=_setup_pool_context)
