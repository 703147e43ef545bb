"""Sign of gradients for maximisation, and weight decay."""

from __future__ import annotations

import torch
from torch import Tensor

from wattline.fusion.optim.broadcast import MemberVectors
from wattline.fusion.optim.update import Flags, Hyper


def prepare_gradients(params: list[Tensor], grads: list[Tensor], hyper: Hyper, flags: Flags) -> list[Tensor]:
    """Return *grads*, or new tensors where maximisation or weight decay changes them."""
    if "maximize" in flags:
        grads = [-grad for grad in grads]
    if "weight_decay" not in flags:
        return grads
    decay = MemberVectors(hyper["weight_decay"])
    return [
        torch.addcmul(grad, param, *decay.aligned_with(param))
        for param, grad in zip(params, grads, strict=True)
    ]


def shrink_weights(params: list[Tensor], hyper: Hyper, flags: Flags) -> Flags:
    """Apply decoupled weight decay to *params*, in place; return *flags* without it."""
    if "weight_decay" in flags:
        shrink = MemberVectors(1 - hyper["lr"] * hyper["weight_decay"])
        for param in params:
            param.mul_(*shrink.aligned_with(param))
    return flags - {"weight_decay"}
