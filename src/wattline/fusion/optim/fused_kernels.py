"""Adam and AdamW by PyTorch's fused kernels, which need no operator for each term of the update.

A kernel takes numbers, not one for each member. Members with equal numbers are updated by one call, so an
array of equal learning rates needs one, and an array of different ones needs one for each member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wattline.fusion.optim.update import Flags, Hyper, State, step_counters
from wattline.fusion.torch_internals import get_proxy_mode

MAX_CALLS = 3  # with more, operators on the small tensors of all members take less time
SMALL = 20_000  # numbers in one member
_TYPES = (torch.float32, torch.float64)


def run_fused(
    kernel: Callable[..., Any],
    params: list[Tensor],
    grads: list[Tensor],
    state: list[State],
    hyper: Hyper,
    flags: Flags,
) -> bool:
    """Make one step of Adam by *kernel*, in place; return False, having changed nothing, if it cannot.

    It can on a CPU, outside of traces, for parameters that have stepped together.
    """
    if torch.compiler.is_compiling() or get_proxy_mode() is not None:
        return False
    counters = step_counters(state)
    names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if "amsgrad" in flags else [])]
    tensors = [params, grads, *([own[name] for own in state] for name in names)]
    if (
        len(counters) > 1
        or not all(map(_is_plain, params))
        or not all(t.is_contiguous() for own in tensors[2:] for t in own)
    ):
        return False
    tensors[1] = [grad.contiguous() for grad in grads]  # the kernels ignore strides
    columns = [counters[0] + 1, *(hyper[name] for name in ("lr", "beta1", "beta2", "eps"))]
    columns += [hyper["weight_decay"]] if "weight_decay" in flags else []
    members: dict[tuple[float, ...], list[int]] = {}
    for member, numbers in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        members.setdefault(numbers, []).append(member)
    if len(members) > MAX_CALLS and sum(map(Tensor.numel, params)) < SMALL * len(columns[0]):
        return False
    counters[0].add_(1)
    if len(members) == 1:
        _call_kernel(kernel, tensors, next(iter(members)), flags)
        return True
    rows = [[tensor.unbind() for tensor in column] for column in tensors]
    for numbers, own in members.items():
        selected = [[views[member] for member in own for views in column] for column in rows]
        _call_kernel(kernel, selected, numbers, flags)
    return True


def _call_kernel(
    kernel: Callable[..., Any], tensors: Sequence[list[Tensor]], numbers: tuple[float, ...], flags: Flags
) -> None:
    params, grads, means, squares, *maxima = tensors
    step, lr, beta1, beta2, eps, *decay = numbers
    steps = [torch.tensor(step, dtype=torch.float32)] * len(params)
    kernel(
        *(params, grads, means, squares, maxima[0] if maxima else [], steps),
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=decay[0] if decay else 0.0,
        eps=eps,
        amsgrad="amsgrad" in flags,
        maximize="maximize" in flags,
    )


def _is_plain(tensor: Tensor) -> bool:
    """Return whether the kernel takes *tensor*: an ordinary one of 32 or 64 bits, in the CPU's memory."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype in _TYPES
        and tensor.is_cpu
        and tensor.is_contiguous()
    )
