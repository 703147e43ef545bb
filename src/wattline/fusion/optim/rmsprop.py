"""RMSprop, plain, centred or with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from wattline.fusion.optim.broadcast import Spread
from wattline.fusion.optim.decay import gradients
from wattline.fusion.optim.hyperparameters import Range
from wattline.fusion.optim.optimizer import ArrayOptimizer, Numbers, Params
from wattline.fusion.optim.update import Flags, Hyper, State, counters


def rmsprop(
    params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags
) -> None:
    """One step. The buffers of members without momentum are left as they are."""
    grads = gradients(params, grads, hyper, flags)
    for step in counters(state):
        step.add_(1)
    alpha, momentum = hyper["alpha"], hyper["momentum"]
    moves = momentum > 0
    factors = Spread(
        -hyper["lr"], alpha, 1 - alpha, hyper["eps"], torch.where(moves, momentum, 1.0), moves.to(alpha.dtype)
    )
    for param, grad, own in zip(params, grads, state, strict=True):
        rate, kept, added, eps, momentum, moves = factors.over(param)
        square = own["square_avg"]
        work = grad * added
        square.mul_(kept).addcmul_(work, grad)
        if "centered" in flags:
            mean = own["grad_avg"].lerp_(grad, added)
            torch.addcmul(square, mean, mean, value=-1, out=work).sqrt_().add_(eps)
        else:
            torch.sqrt(square, out=work).add_(eps)
        if "momentum" not in flags:
            param.addcdiv_(grad * rate, work)
            continue
        direction = torch.div(grad, work, out=work)
        buffer = own["momentum_buffer"].mul_(momentum)
        if "mixed" in flags:
            direction = torch.where(moves != 0, buffer.addcmul_(direction, moves), direction)
        else:
            direction = buffer.add_(direction)
        param.addcmul_(direction, rate)


class RMSprop(ArrayOptimizer):
    """`torch.optim.RMSprop` with one or B values for each of lr, alpha, eps, weight_decay and momentum."""

    ordinary = torch.optim.RMSprop
    rule = staticmethod(rmsprop)
    numbers: ClassVar = {
        "lr": Range(0),
        "alpha": Range(0),
        "eps": Range(0),
        "weight_decay": Range(0),
        "momentum": Range(0),
    }
    switches = ("centered", "maximize")

    def __init__(
        self,
        params: Params,
        lr: Numbers = 1e-2,
        alpha: Numbers = 0.99,
        eps: Numbers = 1e-8,
        weight_decay: Numbers = 0,
        momentum: Numbers = 0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
                "maximize": maximize,
            },
        )

    def state_names(self, flags: Flags) -> tuple[str, ...]:
        """The mean of squared gradients; the buffer of momentum and the mean gradient where they are used."""
        names = ["step", "square_avg"]
        names += ["momentum_buffer"] if "momentum" in flags else []
        names += ["grad_avg"] if "centered" in flags else []
        return tuple(names)

    def ordinary_state(self, own: dict[str, Tensor], hyper: Mapping[str, Any]) -> dict[str, Tensor]:
        """Without the buffer, if this member has no momentum."""
        return {name: own[name] for name in own if name != "momentum_buffer" or hyper["momentum"] > 0}
