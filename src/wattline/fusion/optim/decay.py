"""The gradients an update starts from: turned round to maximise, weight decay added."""

from __future__ import annotations

import torch
from torch import Tensor

from wattline.fusion.optim.broadcast import Spread
from wattline.fusion.optim.update import Flags, Hyper


def gradients(params: list[Tensor], grads: list[Tensor], hyper: Hyper, flags: Flags) -> list[Tensor]:
    """*grads*, or new tensors where something has to change; what was given is left as it is."""
    if "maximize" in flags:
        grads = [-grad for grad in grads]
    if "weight_decay" not in flags:
        return grads
    decay = Spread(hyper["weight_decay"])
    return [torch.addcmul(grad, param, *decay.over(param)) for param, grad in zip(params, grads, strict=True)]
