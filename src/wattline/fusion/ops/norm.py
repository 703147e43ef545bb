"""Normalisation layers of all members: statistics, scale and shift of each member."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.function import once_differentiable

from wattline.fusion.lowering.rules import (
    BatchedTensor,
    RuleNotApplicable,
    Ways,
    expand_to_members,
    lowering_rule,
    require_member_rows,
    rewrite_rule,
)
from wattline.fusion.lowering.target import is_for_compiler
from wattline.fusion.torch_internals import get_proxy_mode, weight_norm_operator


@lowering_rule(F.batch_norm, description="one batch norm over the channels of all members")
def batch_norm(
    size: int,
    ways: Ways,
    input: Tensor | BatchedTensor,
    running_mean: Tensor | BatchedTensor | None,
    running_var: Tensor | BatchedTensor | None,
    weight: Tensor | BatchedTensor | None = None,
    bias: Tensor | BatchedTensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> BatchedTensor:
    """Compute [N, B·C, …] if the tensor is laid out so in memory; else the same sums in its layout."""
    stats, scales = (
        (require_member_rows(running_mean), require_member_rows(running_var)),
        (require_member_rows(weight), require_member_rows(bias)),
    )
    x = expand_to_members(input, size).members_second
    if _is_folded(x):
        mean_, var_, w, b = (None if t is None else t.flatten() for t in (*stats, *scales))
        y = F.batch_norm(x.flatten(1, 2), mean_, var_, w, b, training, momentum, eps)
        return BatchedTensor(y.unflatten(1, (size, -1)), 1)
    over = [0, *range(3, x.dim())]
    count = x.numel() // max(1, x.shape[1] * x.shape[2])
    if training and count <= 1:
        raise RuleNotApplicable  # PyTorch raises the error
    shape = (size, -1, *[1] * (x.dim() - 3))
    if not is_for_compiler() and _has_member_rows(x):
        y = _MemberBatchNorm.apply(_flatten_samples(x), *scales, *stats, training, momentum, eps)
        return BatchedTensor(_unflatten_samples(y, x), 1)
    if training and is_for_compiler() and get_proxy_mode() is not None:
        w, b = (None if t is None else t.reshape(1, *shape) for t in scales)
        y, mean, var = _TracedBatchNorm.apply(x, w, b, over, eps)
        _update_running_stats(stats, mean.reshape(size, -1), var.reshape(size, -1), count, momentum)
        return BatchedTensor(y, 1)
    if training:
        var, mean = torch.var_mean(x, over, correction=0, keepdim=True)
        _update_running_stats(stats, mean.reshape(size, -1), var.reshape(size, -1), count, momentum)
    else:
        assert stats[0] is not None
        assert stats[1] is not None
        mean, var = stats[0].reshape(shape), stats[1].reshape(shape)
    y = (x - mean) * torch.rsqrt(var + eps)
    if scales[0] is not None:
        y = y * scales[0].reshape(shape)
    if scales[1] is not None:
        y = y + scales[1].reshape(shape)
    return BatchedTensor(y, 1)


class _TracedBatchNorm(torch.autograd.Function):
    """Batch norm with a backward of two sums; autograd's derivative of the formula needs twice as many.

    Only for traced steps: it is differentiable once, which is enough for them.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, over: list[int], eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return [N, B, C, …], and the mean and variance of each channel."""
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
        """Return the gradients of x, weight and bias."""
        x, mean, scale, weight = ctx.saved_tensors
        plain = (x - mean) * scale
        shift, slope = grad.sum(ctx.over, keepdim=True), (grad * plain).sum(ctx.over, keepdim=True)
        count = x.numel() // shift.numel()
        dx = (scale if weight is None else scale * weight) * (grad - (shift + plain * slope) * (1.0 / count))
        return dx, None if weight is None else slope, shift if ctx.has_bias else None, None, None


class _MemberBatchNorm(torch.autograd.Function):
    """Batch norm of rows [B, samples, C] by PyTorch's kernels, one call for each member.

    The formula in operators would go through memory ten times as often.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> Tensor:
        """Return the normalised rows; update the running statistics [B, C]."""
        y = torch.empty_like(rows)
        means, scales = (rows.new_empty(rows.shape[0], rows.shape[2] if training else 0) for _ in range(2))
        for member in range(rows.shape[0]):
            own = (None if t is None else t[member] for t in (weight, bias, running_mean, running_var))
            torch.ops.aten.native_batch_norm.out(
                rows[member],
                *own,
                training,
                momentum,
                eps,
                out=y[member],
                save_mean=means[member],
                save_invstd=scales[member],
            )
        ctx.save_for_backward(rows, weight, running_mean, running_var, means, scales)
        ctx.options, ctx.has_bias = (training, eps), bias is not None
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the rows, of weight and bias."""
        rows, weight, running_mean, running_var, means, scales = ctx.saved_tensors
        training, eps = ctx.options
        if torch.is_grad_enabled():  # to be differentiated again
            formula = _differentiate_by_formula(grad, rows, weight, running_mean, running_var, training, eps)
            return *formula[:2], formula[2] if ctx.has_bias else None, None, None, None, None, None
        grad, needs = grad.contiguous(), [ctx.needs_input_grad[0], weight is not None, ctx.has_bias]
        columns = zip(
            *(
                torch.ops.aten.native_batch_norm_backward(
                    grad[member],
                    rows[member],
                    *(None if t is None else t[member] for t in (weight, running_mean, running_var)),
                    means[member],
                    scales[member],
                    training,
                    eps,
                    needs,
                )
                for member in range(rows.shape[0])
            ),
            strict=True,
        )
        grads = (torch.stack(own) if need else None for own, need in zip(columns, needs, strict=True))
        return *grads, None, None, None, None, None


def _differentiate_by_formula(
    grad: Tensor,
    rows: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the gradients of rows, weight and bias, in operators that can be differentiated."""
    if training:
        var, mean = torch.var_mean(rows, 1, correction=0, keepdim=True)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, var = running_mean.unsqueeze(1), running_var.unsqueeze(1)
    scale = torch.rsqrt(var + eps)
    plain = (rows - mean) * scale
    shift, slope = grad.sum(1, keepdim=True), (grad * plain).sum(1, keepdim=True)
    gain = scale if weight is None else scale * weight.unsqueeze(1)
    dx = gain * (grad - (shift + plain * slope) / rows.shape[1]) if training else gain * grad
    return dx, None if weight is None else slope.squeeze(1), shift.squeeze(1)


def _has_member_rows(x: Tensor) -> bool:
    """Return whether members of [N, B, C, …] are apart in memory, with channels last, on a CPU."""
    is_plain = x.is_cpu and x.dtype in (torch.float32, torch.float64)
    return is_plain and x.dim() > 3 and x.movedim(1, 0).movedim(2, -1).is_contiguous()


def _flatten_samples(x: Tensor) -> Tensor:
    """Return [N, B, C, …] as [B, samples, C]."""
    return x.movedim(1, 0).movedim(2, -1).flatten(1, -2).contiguous()


def _unflatten_samples(rows: Tensor, like: Tensor) -> Tensor:
    """Return the reverse of `_flatten_samples`, of the shape of *like*."""
    last = (like.shape[1], like.shape[0], *like.shape[3:], like.shape[2])
    return rows.view(last).movedim(-1, 2).movedim(0, 1)


def _is_folded(x: Tensor) -> bool:
    """Return whether members and channels of [N, B, C, …] are adjacent in memory."""
    return x.stride(1) == x.shape[2] * x.stride(2)


def _update_running_stats(
    stats: tuple[Tensor | None, Tensor | None], mean: Tensor, var: Tensor, count: int, momentum: float
) -> None:
    if stats[0] is None or stats[1] is None:
        return
    with torch.no_grad():
        stats[0].mul_(1 - momentum).add_(mean.to(stats[0].dtype), alpha=momentum)
        stats[1].mul_(1 - momentum).add_(var.to(stats[1].dtype), alpha=momentum * count / (count - 1))


@lowering_rule(F.layer_norm, description="one layer norm, then each member's scale and shift")
def layer_norm(
    size: int,
    ways: Ways,
    input: Tensor | BatchedTensor,
    normalized_shape: list[int],
    weight: Tensor | BatchedTensor | None = None,
    bias: Tensor | BatchedTensor | None = None,
    eps: float = 1e-5,
) -> BatchedTensor:
    """Compute [B, N, …, F] · [B, 1, …, F] + [B, 1, …, F]."""
    x = input.members_first if isinstance(input, BatchedTensor) else input.unsqueeze(0)
    y = F.layer_norm(x, normalized_shape, None, None, eps)
    return BatchedTensor(_apply_scale(y, size, len(normalized_shape), weight, bias), 0)


@lowering_rule(F.rms_norm, description="one RMS norm, then each member's scale")
def rms_norm(
    size: int,
    ways: Ways,
    input: Tensor | BatchedTensor,
    normalized_shape: list[int],
    weight: Tensor | BatchedTensor | None = None,
    eps: float | None = None,
) -> BatchedTensor:
    """Compute [B, N, …, F] · [B, 1, …, F]."""
    x = input.members_first if isinstance(input, BatchedTensor) else input.unsqueeze(0)
    y = F.rms_norm(x, normalized_shape, None, eps)
    return BatchedTensor(_apply_scale(y, size, len(normalized_shape), weight, None), 0)


def _apply_scale(
    y: Tensor,
    size: int,
    last: int,
    weight: Tensor | BatchedTensor | None,
    bias: Tensor | BatchedTensor | None,
) -> Tensor:
    def lift(t: Tensor | BatchedTensor) -> Tensor:
        if isinstance(t, Tensor):
            return t
        own = t.members_first
        return own.reshape(size, *[1] * (y.dim() - 1 - last), *own.shape[1:])

    if weight is not None:
        y = y * lift(weight)
    if bias is not None:
        y = y + lift(bias)
    return y.expand(size, *y.shape[1:])


@lowering_rule(F.group_norm, description="one group norm over the groups of all members")
def group_norm(
    size: int,
    ways: Ways,
    input: Tensor | BatchedTensor,
    num_groups: int,
    weight: Tensor | BatchedTensor | None = None,
    bias: Tensor | BatchedTensor | None = None,
    eps: float = 1e-5,
) -> BatchedTensor:
    """Compute [N, B·C, …] with B·G groups."""
    w, b = require_member_rows(weight), require_member_rows(bias)
    x = expand_to_members(input, size).members_second
    if x.shape[2] % num_groups:
        raise RuleNotApplicable  # PyTorch raises the error
    flat = None if w is None else w.flatten(), None if b is None else b.flatten()
    y = F.group_norm(x.flatten(1, 2), size * num_groups, *flat, eps)
    return BatchedTensor(y.unflatten(1, (size, -1)), 1)


@lowering_rule(F.instance_norm, description="one instance norm over the channels of all members")
def instance_norm(
    size: int,
    ways: Ways,
    input: Tensor | BatchedTensor,
    running_mean: Tensor | BatchedTensor | None = None,
    running_var: Tensor | BatchedTensor | None = None,
    weight: Tensor | BatchedTensor | None = None,
    bias: Tensor | BatchedTensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> BatchedTensor:
    """Compute [N, B·C, …]."""
    parts = [require_member_rows(t) for t in (running_mean, running_var, weight, bias)]
    x = expand_to_members(input, size).members_second
    if x.dim() < 4:  # a single sample without a batch
        raise RuleNotApplicable
    mean, var, w, b = (None if t is None else t.flatten() for t in parts)
    y = F.instance_norm(x.flatten(1, 2), mean, var, w, b, use_input_stats, momentum, eps)
    return BatchedTensor(y.unflatten(1, (size, -1)), 1)


@rewrite_rule(weight_norm_operator, description="each member's norms")
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Compute v · g / |v|, with a norm for each slice along *dim*; -1: one norm."""
    over = [d for d in range(v.dim()) if dim == -1 or d != dim]
    return v * (g / torch.linalg.vector_norm(v, dim=over, keepdim=dim != -1))
