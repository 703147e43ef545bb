"""RMSprop of stacked parameters: plain, centred or with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from wattline.fusion.optim.broadcast import MemberVectors
from wattline.fusion.optim.gradients import prepare_gradients
from wattline.fusion.optim.hyperparameters import Range
from wattline.fusion.optim.optimizer import ArrayOptimizer, Numbers
from wattline.fusion.optim.param_groups import Params
from wattline.fusion.optim.update import Flags, Hyper, State, step_counters


def rmsprop(
    params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags
) -> None:
    """Make one step of RMSprop, in place; the buffers of members without momentum stay unchanged."""
    grads = prepare_gradients(params, grads, hyper, flags)
    for step in step_counters(state):
        step.add_(1)
    alpha, momentum = hyper["alpha"], hyper["momentum"]
    has_momentum = momentum > 0
    factors = MemberVectors(
        -hyper["lr"],
        alpha,
        1 - alpha,
        hyper["eps"],
        torch.where(has_momentum, momentum, 1.0),
        has_momentum.to(alpha.dtype),
    )
    for param, grad, own in zip(params, grads, state, strict=True):
        rate, decay, gain, eps, momentum, has_momentum = factors.aligned_with(param)
        square = own["square_avg"]
        work = grad * gain
        square.mul_(decay).addcmul_(work, grad)
        if "centered" in flags:
            mean = own["grad_avg"].lerp_(grad, gain)
            torch.addcmul(square, mean, mean, value=-1, out=work).sqrt_().add_(eps)
        else:
            torch.sqrt(square, out=work).add_(eps)
        if "momentum" not in flags:
            param.addcdiv_(grad * rate, work)
            continue
        direction = torch.div(grad, work, out=work)
        buffer = own["momentum_buffer"].mul_(momentum)
        if "mixed" in flags:
            direction = torch.where(has_momentum != 0, buffer.addcmul_(direction, has_momentum), direction)
        else:
            direction = buffer.add_(direction)
        param.addcmul_(direction, rate)


class RMSprop(ArrayOptimizer):
    """`torch.optim.RMSprop` with one or B values for each of lr, alpha, eps, weight_decay and momentum."""

    torch_class = torch.optim.RMSprop
    rule = staticmethod(rmsprop)
    ranges: ClassVar = {
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
        """Return the names of the average of squares, and of momentum buffer and mean gradient where used."""
        names = ["step", "square_avg"]
        names += ["momentum_buffer"] if "momentum" in flags else []
        names += ["grad_avg"] if "centered" in flags else []
        return tuple(names)

    def to_torch_state(self, own: dict[str, Tensor], hyper: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the state without the buffer if this member has no momentum."""
        return {name: own[name] for name in own if name != "momentum_buffer" or hyper["momentum"] > 0}
