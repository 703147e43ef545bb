"""Adam and AdamW of stacked parameters."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from wattline.fusion.optim.broadcast import MemberVectors
from wattline.fusion.optim.fused_kernels import run_fused
from wattline.fusion.optim.gradients import prepare_gradients, shrink_weights
from wattline.fusion.optim.hyperparameters import Range
from wattline.fusion.optim.optimizer import ArrayOptimizer, Numbers, Pairs
from wattline.fusion.optim.param_groups import Params
from wattline.fusion.optim.update import Flags, Hyper, State, step_counters
from wattline.fusion.torch_internals import fused_adam, fused_adamw


def adam(params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags) -> None:
    """Make one step of Adam, in place, with weight decay added to the gradient."""
    if run_fused(fused_adam, params, grads, state, hyper, flags):
        return
    _moments(params, prepare_gradients(params, grads, hyper, flags), state, hyper, flags)


def adamw(params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags) -> None:
    """Make one step of Adam, in place, with weight decay applied to the parameter itself."""
    if run_fused(fused_adamw, params, grads, state, hyper, flags):
        return
    flags = shrink_weights(params, hyper, flags)
    _moments(params, prepare_gradients(params, grads, hyper, flags), state, hyper, flags)


def _moments(
    params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags
) -> None:
    factors = {}
    for step in step_counters(state):
        step.add_(1)
        lr, beta1, beta2, eps = (hyper[name].to(step.device) for name in ("lr", "beta1", "beta2", "eps"))
        root = (1 - beta2**step).sqrt()
        rate = -lr / (1 - beta1**step)
        factors[id(step)] = MemberVectors(1 - beta1, beta2, 1 - beta2, root, eps, rate)
    for param, grad, own in zip(params, grads, state, strict=True):
        weight, decay, gain, root, eps, rate = factors[id(own["step"])].aligned_with(param)
        mean, square = own["exp_avg"], own["exp_avg_sq"]
        mean.lerp_(grad, weight)
        work = grad * gain
        square.mul_(decay).addcmul_(work, grad)
        if "amsgrad" in flags:
            square = torch.maximum(own["max_exp_avg_sq"], square, out=own["max_exp_avg_sq"])
        # torch.optim's order of operations, so that float32 agrees to the last bit; `work` is reused.
        torch.addcdiv(eps, torch.sqrt(square, out=work), root, out=work)
        param.addcdiv_(mean * rate, work)


class Adam(ArrayOptimizer):
    """`torch.optim.Adam` with one or B values for each of lr, betas, eps and weight_decay."""

    torch_class: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adam
    rule = staticmethod(adam)
    ranges: ClassVar = {
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
        """Return the names of the averages of gradients and squares, and of the maximum for amsgrad."""
        return ("step", "exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if "amsgrad" in flags else []))


class AdamW(Adam):
    """`torch.optim.AdamW` with one or B values for each of lr, betas, eps and weight_decay."""

    torch_class = torch.optim.AdamW
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
