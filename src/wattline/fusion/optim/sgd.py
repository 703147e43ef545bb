"""Stochastic gradient descent, with or without momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from wattline.errors import ConfigError
from wattline.fusion.optim.broadcast import Spread
from wattline.fusion.optim.decay import gradients
from wattline.fusion.optim.hyperparameters import ANY, Range
from wattline.fusion.optim.optimizer import ArrayOptimizer, Group, Numbers, Params
from wattline.fusion.optim.update import Flags, Hyper, State, counters


def sgd(params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags) -> None:
    """One step. A member's buffer starts as its first gradient; who has no momentum has no buffer."""
    grads = gradients(params, grads, hyper, flags)
    if "momentum" not in flags:
        rates = Spread(-hyper["lr"])
        for param, grad in zip(params, grads, strict=True):
            (rate,) = rates.over(param)
            param.addcmul_(grad, rate)
        return
    factors = {}
    for step in counters(state):
        lr, momentum, dampening = (hyper[name].to(step.device) for name in ("lr", "momentum", "dampening"))
        moves = momentum != 0
        # A buffer is zero before its member's first step, so that adding all of the gradient makes it that.
        share = torch.where(step == 0, 1.0, 1 - dampening) * moves
        factors[id(step)] = Spread(-lr, momentum, torch.where(moves, momentum, 1.0), share)
        step.add_(moves)
    for param, grad, own in zip(params, grads, state, strict=True):
        rate, momentum, kept, share = factors[id(own["step"])].over(param)
        buffer = own["momentum_buffer"].mul_(kept).addcmul_(grad, share)
        if "nesterov" in flags:
            direction = torch.addcmul(grad, buffer, momentum)
        elif "mixed" in flags:
            direction = torch.where(momentum != 0, buffer, grad)
        else:
            direction = buffer
        param.addcmul_(direction, rate)


class SGD(ArrayOptimizer):
    """`torch.optim.SGD` with one or B values for each of lr, momentum, dampening and weight_decay."""

    ordinary = torch.optim.SGD
    rule = staticmethod(sgd)
    numbers: ClassVar = {
        "lr": Range(0),
        "momentum": Range(0),
        "dampening": ANY,
        "weight_decay": Range(0),
    }
    switches = ("nesterov", "maximize")

    def __init__(
        self,
        params: Params,
        lr: Numbers = 1e-3,
        momentum: Numbers = 0,
        dampening: Numbers = 0,
        weight_decay: Numbers = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
            },
        )

    def _check(self, group: Group) -> None:
        pairs = zip(group["momentum"].tolist(), group["dampening"].tolist(), strict=True)
        for member, (momentum, dampening) in enumerate(pairs if group["nesterov"] else ()):
            if momentum <= 0 or dampening != 0:
                raise ConfigError(
                    f"nesterov needs momentum above 0 and no dampening, "
                    f"but member {member} has momentum {momentum} and dampening {dampening}"
                )

    def state_names(self, flags: Flags) -> tuple[str, ...]:
        """Nothing without momentum. `step` counts the steps that used the buffer: 0 is "no buffer yet"."""
        return ("step", "momentum_buffer") if "momentum" in flags else ()

    def ordinary_state(self, own: dict[str, Tensor], hyper: Mapping[str, Any]) -> dict[str, Tensor]:
        """Just the buffer."""
        return {"momentum_buffer": own["momentum_buffer"]}

    def own_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The buffer, if there is one, and that it is in use."""
        buffer = state.get("momentum_buffer")
        return {} if buffer is None else {"momentum_buffer": buffer, "step": 1}
