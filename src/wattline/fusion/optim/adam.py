"""Adam and AdamW."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from wattline.fusion.optim.broadcast import Spread
from wattline.fusion.optim.decay import gradients
from wattline.fusion.optim.hyperparameters import Range
from wattline.fusion.optim.optimizer import ArrayOptimizer, Numbers, Pairs, Params
from wattline.fusion.optim.update import Flags, Hyper, State, counters


def adam(params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags) -> None:
    """One step of Adam, weight decay added to the gradient."""
    _moments(params, gradients(params, grads, hyper, flags), state, hyper, flags)


def adamw(params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags) -> None:
    """One step of Adam, weight decay taken from the parameter itself."""
    if "weight_decay" in flags:
        shrink = Spread(1 - hyper["lr"] * hyper["weight_decay"])
        for param in params:
            param.mul_(*shrink.over(param))
    _moments(params, gradients(params, grads, hyper, flags - {"weight_decay"}), state, hyper, flags)


def _moments(
    params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags
) -> None:
    factors = {}
    for step in counters(state):
        step.add_(1)
        lr, beta1, beta2, eps = (hyper[name].to(step.device) for name in ("lr", "beta1", "beta2", "eps"))
        root = (1 - beta2**step).sqrt()
        rate = -lr / (1 - beta1**step)
        factors[id(step)] = Spread(1 - beta1, beta2, 1 - beta2, root, eps, rate)
    for param, grad, own in zip(params, grads, state, strict=True):
        toward, kept, added, root, eps, rate = factors[id(own["step"])].over(param)
        mean, square = own["exp_avg"], own["exp_avg_sq"]
        mean.lerp_(grad, toward)
        work = grad * added
        square.mul_(kept).addcmul_(work, grad)
        if "amsgrad" in flags:
            square = torch.maximum(own["max_exp_avg_sq"], square, out=own["max_exp_avg_sq"])
        # torch.optim's order of operations, so that float32 agrees to the last bit; memory is used again.
        torch.addcdiv(eps, torch.sqrt(square, out=work), root, out=work)
        param.addcdiv_(mean * rate, work)


class Adam(ArrayOptimizer):
    """`torch.optim.Adam` with one or B values for each of lr, betas, eps and weight_decay."""

    ordinary: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adam
    rule = staticmethod(adam)
    numbers: ClassVar = {
        "lr": Range(0),
        "beta1": Range(0, below=1),
        "beta2": Range(0, below=1),
        "eps": Range(0),
        "weight_decay": Range(0),
    }
    switches = ("amsgrad", "maximize")

    def __init__(
        self,
        params: Params,
        lr: Numbers = 1e-3,
        betas: Pairs = (0.9, 0.999),
        eps: Numbers = 1e-8,
        weight_decay: Numbers = 0,
        amsgrad: bool = False,
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
                "amsgrad": amsgrad,
                "maximize": maximize,
            },
        )

    def state_names(self, flags: Flags) -> tuple[str, ...]:
        """The means of gradients and of their squares; the largest such square for amsgrad."""
        return ("step", "exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if "amsgrad" in flags else []))


class AdamW(Adam):
    """`torch.optim.AdamW` with one or B values for each of lr, betas, eps and weight_decay."""

    ordinary = torch.optim.AdamW
    rule = staticmethod(adamw)

    def __init__(
        self,
        params: Params,
        lr: Numbers = 1e-3,
        betas: Pairs = (0.9, 0.999),
        eps: Numbers = 1e-8,
        weight_decay: Numbers = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
