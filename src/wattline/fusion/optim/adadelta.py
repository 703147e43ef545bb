"""Adadelta of stacked parameters."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from wattline.fusion.optim.broadcast import MemberVectors
from wattline.fusion.optim.gradients import prepare_gradients
from wattline.fusion.optim.hyperparameters import Range
from wattline.fusion.optim.optimizer import ArrayOptimizer, Numbers
from wattline.fusion.optim.param_groups import Params
from wattline.fusion.optim.update import Flags, Hyper, State, step_counters


def adadelta(
    params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags
) -> None:
    """Make one step of Adadelta, in place."""
    grads = prepare_gradients(params, grads, hyper, flags)
    for step in step_counters(state):
        step.add_(1)
    factors = MemberVectors(-hyper["lr"], hyper["rho"], 1 - hyper["rho"], hyper["eps"])
    for param, grad, own in zip(params, grads, state, strict=True):
        rate, decay, gain, eps = factors.aligned_with(param)
        square, deltas = own["square_avg"], own["acc_delta"]
        work = grad * gain
        square.mul_(decay).addcmul_(work, grad)
        torch.add(square, eps, out=work).sqrt_()
        delta = (deltas + eps).sqrt_().div_(work).mul_(grad)
        deltas.mul_(decay).addcmul_(torch.mul(delta, gain, out=work), delta)
        param.addcmul_(delta, rate)


class Adadelta(ArrayOptimizer):
    """`torch.optim.Adadelta` with one or B values for each of lr, rho, eps and weight_decay."""

    torch_class = torch.optim.Adadelta
    rule = staticmethod(adadelta)
    ranges: ClassVar = {"lr": Range(0), "rho": Range(0, 1), "eps": Range(0), "weight_decay": Range(0)}
    switches = ("maximize",)

    def __init__(
        self,
        params: Params,
        lr: Numbers = 1.0,
        rho: Numbers = 0.9,
        eps: Numbers = 1e-6,
        weight_decay: Numbers = 0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        )

    def state_names(self, flags: Flags) -> tuple[str, ...]:
        """Return the names of the averages of squared gradients and squared updates."""
        return ("step", "square_avg", "acc_delta")
