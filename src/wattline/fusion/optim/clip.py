"""Gradient clipping, separately for each member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wattline.errors import ConfigError
from wattline.fusion.optim.broadcast import MemberVectors
from wattline.fusion.optim.hyperparameters import Range, vector


def clip_grad_norm_(params: Any, max_norm: Any, norm_type: float = 2.0) -> Tensor:
    """Scale down the gradients of members with a norm above *max_norm* (one value, or one per member).

    Return the norms before clipping, [B]. Equivalent to `torch.nn.utils.clip_grad_norm_` of each member.
    """
    tensors, grads = _gradients(params)
    width = tensors[0].shape[0]
    bound = vector("max_norm", max_norm, width)
    if not grads:
        return torch.zeros(width)
    return clip_norm(grads, bound, norm_type)


def clip_grad_value_(params: Any, clip_value: Any) -> None:
    """Clamp gradients to ± *clip_value* (one value, or one per member)."""
    tensors, grads = _gradients(params)
    clip_value = vector("clip_value", clip_value, tensors[0].shape[0], Range(0))
    if grads:
        clip_by_value(grads, clip_value)


@torch.no_grad()
def clip_norm(grads: Sequence[Tensor], max_norm: Tensor, norm_type: float = 2.0) -> Tensor:
    """Clip a list of gradients by norm, in place, with *max_norm* as a tensor of [B]; can be traced."""
    total = gradient_norms(grads, norm_type)
    limit = max_norm.to(device=total.device, dtype=total.dtype)
    factors = MemberVectors((limit / (total + 1e-6)).clamp(max=1.0))
    for grad in grads:
        grad.mul_(*factors.aligned_with(grad))
    return total


@torch.no_grad()
def clip_by_value(grads: Sequence[Tensor], clip_value: Tensor) -> None:
    """Clamp a list of gradients, in place, with *clip_value* as a tensor of [B]; can be traced."""
    limits = MemberVectors(-clip_value, clip_value)
    for grad in grads:
        low, high = limits.aligned_with(grad)
        grad.clamp_(min=low, max=high)


def gradient_norms(grads: Sequence[Tensor], norm_type: float = 2.0) -> Tensor:
    """Return the norm of all gradients of each member, [B]."""
    device = grads[0].device
    each = [member_norms(grad, norm_type).to(device) for grad in grads]
    total: Tensor = torch.linalg.vector_norm(torch.stack(each), norm_type, dim=0)
    return total


def member_norms(tensor: Tensor, norm_type: float = 2.0) -> Tensor:
    """Return the norms of the rows of one stacked tensor, [B]."""
    # Without the new axis, a tensor of [B] would be reduced to one number: an empty dim means all axes.
    rows = tensor.unsqueeze(-1)
    each: Tensor = torch.linalg.vector_norm(rows, norm_type, dim=tuple(range(1, rows.ndim)))
    return each


def _gradients(params: Any) -> tuple[list[Tensor], list[Tensor]]:
    if hasattr(params, "parameters"):
        params = params.parameters()
    tensors = [params] if isinstance(params, Tensor) else list(params)
    tensors = [tensor for tensor in tensors if tensor.requires_grad]
    if len(widths := {tensor.shape[:1] for tensor in tensors}) != 1 or () in widths:
        shape_list = ", ".join(str(list(tensor.shape)) for tensor in tensors[:6])
        raise ConfigError(
            f"expected parameters stacked for one number of members, got the shapes: {shape_list or 'none'}"
        )
    return tensors, [tensor.grad for tensor in tensors if tensor.grad is not None]
