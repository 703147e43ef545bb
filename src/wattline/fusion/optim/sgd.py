"""Stochastic gradient descent of stacked parameters, with or without momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from wattline.errors import ConfigError
from wattline.fusion.optim.broadcast import MemberVectors
from wattline.fusion.optim.gradients import prepare_gradients
from wattline.fusion.optim.hyperparameters import ANY, Range
from wattline.fusion.optim.optimizer import ArrayOptimizer, Numbers
from wattline.fusion.optim.param_groups import Group, Params
from wattline.fusion.optim.update import Flags, Hyper, State, step_counters


def sgd(params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags) -> None:
    """Make one step of SGD, in place.

    A member's buffer starts as its first gradient; members without momentum have no buffer.
    """
    grads = prepare_gradients(params, grads, hyper, flags)
    if "momentum" not in flags:
        rates = MemberVectors(-hyper["lr"])
        for param, grad in zip(params, grads, strict=True):
            (rate,) = rates.aligned_with(param)
            param.addcmul_(grad, rate)
        return
    factors = {}
    for step in step_counters(state):
        lr, momentum, dampening = (hyper[name].to(step.device) for name in ("lr", "momentum", "dampening"))
        has_momentum = momentum != 0
        # A buffer is zero before its member's first step, so adding the whole gradient initialises it.
        gain = torch.where(step == 0, 1.0, 1 - dampening) * has_momentum
        factors[id(step)] = MemberVectors(-lr, momentum, torch.where(has_momentum, momentum, 1.0), gain)
        step.add_(has_momentum)
    for param, grad, own in zip(params, grads, state, strict=True):
        rate, momentum, decay, gain = factors[id(own["step"])].aligned_with(param)
        buffer = own["momentum_buffer"].mul_(decay).addcmul_(grad, gain)
        if "nesterov" in flags:
            direction = torch.addcmul(grad, buffer, momentum)
        elif "mixed" in flags:
            direction = torch.where(momentum != 0, buffer, grad)
        else:
            direction = buffer
        param.addcmul_(direction, rate)


class SGD(ArrayOptimizer):
    """`torch.optim.SGD` with one or B values for each of lr, momentum, dampening and weight_decay."""

    torch_class = torch.optim.SGD
    rule = staticmethod(sgd)
    ranges: ClassVar = {
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
                    f"nesterov needs momentum > 0 and dampening 0, "
                    f"but member {member} has momentum {momentum} and dampening {dampening}"
                )

    def state_names(self, flags: Flags) -> tuple[str, ...]:
        """Return the state names; none without momentum. `step` counts uses of the buffer (0: no buffer)."""
        return ("step", "momentum_buffer") if "momentum" in flags else ()

    def to_torch_state(self, own: dict[str, Tensor], hyper: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return only the buffer."""
        return {"momentum_buffer": own["momentum_buffer"]}

    def from_torch_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the buffer, if there is one, and a step count that marks it as used."""
        buffer = state.get("momentum_buffer")
        return {} if buffer is None else {"momentum_buffer": buffer, "step": 1}
