"""RAdam of stacked parameters: Adam with a rectified variance."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from wattline.fusion.optim.broadcast import MemberVectors
from wattline.fusion.optim.gradients import prepare_gradients, shrink_weights
from wattline.fusion.optim.hyperparameters import Range
from wattline.fusion.optim.optimizer import ArrayOptimizer, Numbers, Pairs
from wattline.fusion.optim.param_groups import Params
from wattline.fusion.optim.update import Flags, Hyper, State, step_counters

_MIN_LENGTH = 5.0  # of the average, from which its variance is tractable (Liu et al. 2020 have 4)


def radam(params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags) -> None:
    """Make one step of RAdam, in place; members with too few steps are not divided by their variance."""
    if "decoupled_weight_decay" in flags:
        flags = shrink_weights(params, hyper, flags)
    grads = prepare_gradients(params, grads, hyper, flags)
    factors = {id(step): _advance(step, hyper) for step in step_counters(state)}
    for param, grad, own in zip(params, grads, state, strict=True):
        weight, decay, gain, eps, rate, rectified = factors[id(own["step"])].aligned_with(param)
        mean = own["exp_avg"].lerp_(grad, weight)
        square = own["exp_avg_sq"].mul_(decay).addcmul_(grad * gain, grad)
        divisor = torch.where(rectified != 0, square.sqrt().add_(eps), 1.0)
        param.addcdiv_(mean * rate, divisor)


def _advance(step: Tensor, hyper: Hyper) -> MemberVectors:
    """Count a step, and return the factors of the update."""
    step.add_(1)
    lr, beta1, beta2, eps = (hyper[name].to(step.device) for name in ("lr", "beta1", "beta2", "eps"))
    correction = 1 - beta2**step
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * step * beta2**step / correction
    rectified = length > _MIN_LENGTH
    # Not a number, or negative, for members that are not rectified; those are not selected.
    ratio = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    rate = -lr / (1 - beta1**step) * torch.where(rectified, (ratio * correction).sqrt(), 1.0)
    return MemberVectors(1 - beta1, beta2, 1 - beta2, eps, rate, rectified.to(lr.dtype))


class RAdam(ArrayOptimizer):
    """`torch.optim.RAdam` with one or B values for each of lr, betas, eps and weight_decay."""

    torch_class = torch.optim.RAdam
    rule = staticmethod(radam)
    ranges: ClassVar = {
        "lr": Range(0),
        "beta1": Range(0, below=1),
        "beta2": Range(0, below=1),
        "eps": Range(0),
        "weight_decay": Range(0),
    }
    switches = ("decoupled_weight_decay", "maximize")

    def __init__(
        self,
        params: Params,
        lr: Numbers = 1e-3,
        betas: Pairs = (0.9, 0.999),
        eps: Numbers = 1e-8,
        weight_decay: Numbers = 0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "decoupled_weight_decay": decoupled_weight_decay,
                "maximize": maximize,
            },
        )

    def state_names(self, flags: Flags) -> tuple[str, ...]:
        """Return the names of the averages of gradients and squares."""
        return ("step", "exp_avg", "exp_avg_sq")
