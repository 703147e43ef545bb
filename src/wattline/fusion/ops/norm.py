"""Normalisations of all members: statistics over each member's own, scales and shifts of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from wattline.fusion.lowering.rules import Declined, Many, Ways, lowers, rewrites, rows, spread


@lowers(F.batch_norm, how="one batch norm over the channels of all members")
def batch_norm(
    size: int,
    ways: Ways,
    input: Tensor | Many,
    running_mean: Tensor | Many | None,
    running_var: Tensor | Many | None,
    weight: Tensor | Many | None = None,
    bias: Tensor | Many | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Many:
    """[N, B·C, …] where that is how it lies in memory; else the same sums in the layout at hand."""
    stats, scales = (rows(running_mean), rows(running_var)), (rows(weight), rows(bias))
    x = spread(input, size).second
    if _is_folded(x):
        mean_, var_, w, b = (None if t is None else t.flatten() for t in (*stats, *scales))
        y = F.batch_norm(x.flatten(1, 2), mean_, var_, w, b, training, momentum, eps)
        return Many(y.unflatten(1, (size, -1)), 1)
    over = [0, *range(3, x.dim())]
    count = x.numel() // max(1, x.shape[1] * x.shape[2])
    if training and count <= 1:
        raise Declined  # PyTorch says what is wrong
    shape = (size, -1, *[1] * (x.dim() - 3))
    if training and get_proxy_mode() is not None:
        w, b = (None if t is None else t.reshape(1, *shape) for t in scales)
        y, mean, var = _Written.apply(x, w, b, over, eps)
        _track(stats, mean.reshape(size, -1), var.reshape(size, -1), count, momentum)
        return Many(y, 1)
    if training:
        var, mean = torch.var_mean(x, over, correction=0, keepdim=True)
        _track(stats, mean.reshape(size, -1), var.reshape(size, -1), count, momentum)
    else:
        assert stats[0] is not None
        assert stats[1] is not None
        mean, var = stats[0].reshape(shape), stats[1].reshape(shape)
    y = (x - mean) * torch.rsqrt(var + eps)
    if scales[0] is not None:
        y = y * scales[0].reshape(shape)
    if scales[1] is not None:
        y = y + scales[1].reshape(shape)
    return Many(y, 1)


class _Written(torch.autograd.Function):
    """Batch norm whose way back is two sums: what autograd makes of the formula has twice as many.

    Only for steps that are written down: it can be derived once, which is all that these do.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, over: list[int], eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[N, B, C, …], and the mean and variance of each channel."""
        var, mean = torch.var_mean(x, over, correction=0, keepdim=True)
        scale = torch.rsqrt(var + eps)
        ctx.save_for_backward(x, mean, scale, weight)
        ctx.over, ctx.has_bias = over, bias is not None
        y = (x - mean) * (scale if weight is None else scale * weight)
        ctx.mark_non_differentiable(mean, var)
        return y if bias is None else y + bias, mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """Of x, weight and bias."""
        x, mean, scale, weight = ctx.saved_tensors
        plain = (x - mean) * scale
        shift, slope = grad.sum(ctx.over, keepdim=True), (grad * plain).sum(ctx.over, keepdim=True)
        count = x.numel() // shift.numel()
        dx = (scale if weight is None else scale * weight) * (grad - (shift + plain * slope) * (1.0 / count))
        return dx, None if weight is None else slope, shift if ctx.has_bias else None, None, None


def _is_folded(x: Tensor) -> bool:
    """Whether members and channels of [N, B, C, …] lie behind each other in memory."""
    return x.stride(1) == x.shape[2] * x.stride(2)


def _track(
    stats: tuple[Tensor | None, Tensor | None], mean: Tensor, var: Tensor, count: int, momentum: float
) -> None:
    if stats[0] is None or stats[1] is None:
        return
    with torch.no_grad():
        stats[0].mul_(1 - momentum).add_(mean.to(stats[0].dtype), alpha=momentum)
        stats[1].mul_(1 - momentum).add_(var.to(stats[1].dtype), alpha=momentum * count / (count - 1))


@lowers(F.layer_norm, how="one layer norm, then each member's scale and shift")
def layer_norm(
    size: int,
    ways: Ways,
    input: Tensor | Many,
    normalized_shape: list[int],
    weight: Tensor | Many | None = None,
    bias: Tensor | Many | None = None,
    eps: float = 1e-5,
) -> Many:
    """[B, N, …, F] · [B, 1, …, F] + [B, 1, …, F]."""
    x = input.first if isinstance(input, Many) else input.unsqueeze(0)
    y = F.layer_norm(x, normalized_shape, None, None, eps)
    return Many(_scaled(y, size, len(normalized_shape), weight, bias), 0)


@lowers(F.rms_norm, how="one RMS norm, then each member's scale")
def rms_norm(
    size: int,
    ways: Ways,
    input: Tensor | Many,
    normalized_shape: list[int],
    weight: Tensor | Many | None = None,
    eps: float | None = None,
) -> Many:
    """[B, N, …, F] · [B, 1, …, F]."""
    x = input.first if isinstance(input, Many) else input.unsqueeze(0)
    y = F.rms_norm(x, normalized_shape, None, eps)
    return Many(_scaled(y, size, len(normalized_shape), weight, None), 0)


def _scaled(
    y: Tensor, size: int, last: int, weight: Tensor | Many | None, bias: Tensor | Many | None
) -> Tensor:
    def lift(t: Tensor | Many) -> Tensor:
        if isinstance(t, Tensor):
            return t
        own = t.first
        return own.reshape(size, *[1] * (y.dim() - 1 - last), *own.shape[1:])

    if weight is not None:
        y = y * lift(weight)
    if bias is not None:
        y = y + lift(bias)
    return y.expand(size, *y.shape[1:])


@lowers(F.group_norm, how="one group norm over the groups of all members")
def group_norm(
    size: int,
    ways: Ways,
    input: Tensor | Many,
    num_groups: int,
    weight: Tensor | Many | None = None,
    bias: Tensor | Many | None = None,
    eps: float = 1e-5,
) -> Many:
    """[N, B·C, …] with B·G groups."""
    w, b = rows(weight), rows(bias)
    x = spread(input, size).second
    if x.shape[2] % num_groups:
        raise Declined  # PyTorch says what is wrong
    flat = None if w is None else w.flatten(), None if b is None else b.flatten()
    y = F.group_norm(x.flatten(1, 2), size * num_groups, *flat, eps)
    return Many(y.unflatten(1, (size, -1)), 1)


@lowers(F.instance_norm, how="one instance norm over the channels of all members")
def instance_norm(
    size: int,
    ways: Ways,
    input: Tensor | Many,
    running_mean: Tensor | Many | None = None,
    running_var: Tensor | Many | None = None,
    weight: Tensor | Many | None = None,
    bias: Tensor | Many | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Many:
    """[N, B·C, …]."""
    parts = [rows(t) for t in (running_mean, running_var, weight, bias)]
    x = spread(input, size).second
    if x.dim() < 4:  # a single sample without a batch
        raise Declined
    mean, var, w, b = (None if t is None else t.flatten() for t in parts)
    y = F.instance_norm(x.flatten(1, 2), mean, var, w, b, use_input_stats, momentum, eps)
    return Many(y.unflatten(1, (size, -1)), 1)


@rewrites(torch._weight_norm, how="each member's norms")
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """v · g / |v|, with a norm for each slice along *dim*; -1: one norm."""
    over = [d for d in range(v.dim()) if dim == -1 or d != dim]
    return v * (g / torch.linalg.vector_norm(v, dim=over, keepdim=dim != -1))
