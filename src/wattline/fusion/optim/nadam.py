"""NAdam of stacked parameters: Adam with Nesterov momentum."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from wattline.fusion.optim.broadcast import MemberVectors
from wattline.fusion.optim.gradients import prepare_gradients, shrink_weights
from wattline.fusion.optim.hyperparameters import Range
from wattline.fusion.optim.optimizer import ArrayOptimizer, Numbers, Pairs
from wattline.fusion.optim.param_groups import Params
from wattline.fusion.optim.update import Flags, Hyper, State

_DECAY = 0.96  # Dozat's base of the schedule of momentum


def nadam(params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags) -> None:
    """Make one step of NAdam, in place; each member has its own product of momenta."""
    if "decoupled_weight_decay" in flags:
        flags = shrink_weights(params, hyper, flags)
    grads = prepare_gradients(params, grads, hyper, flags)
    factors = {key: _advance(own, hyper) for key, own in {id(own["step"]): own for own in state}.items()}
    for param, grad, own in zip(params, grads, state, strict=True):
        weight, decay, gain, root, eps, grad_rate, mean_rate = factors[id(own["step"])].aligned_with(param)
        mean = own["exp_avg"].lerp_(grad, weight)
        square = own["exp_avg_sq"].mul_(decay).addcmul_(grad * gain, grad)
        direction = (grad * grad_rate).addcmul_(mean, mean_rate)
        param.addcdiv_(direction, square.div(root).sqrt_().add_(eps))


def _advance(own: State, hyper: Hyper) -> MemberVectors:
    """Count a step, and return the factors of the update."""
    step, product = own["step"].add_(1), own["mu_product"]
    lr, beta1, beta2, eps, slowness = (
        hyper[name].to(step.device) for name in ("lr", "beta1", "beta2", "eps", "momentum_decay")
    )
    momentum = beta1 * (1 - 0.5 * _DECAY ** (step * slowness))
    following = beta1 * (1 - 0.5 * _DECAY ** ((step + 1) * slowness))
    product.mul_(momentum)
    return MemberVectors(
        1 - beta1,
        beta2,
        1 - beta2,
        1 - beta2**step,
        eps,
        -lr * (1 - momentum) / (1 - product),
        -lr * following / (1 - product * following),
    )


class NAdam(ArrayOptimizer):
    """`torch.optim.NAdam` with one or B values for each of its numbers.

    `mu_product` is float64; `torch.optim` rounds it to the default type of PyTorch, a difference below 1e-7.
    """

    torch_class = torch.optim.NAdam
    rule = staticmethod(nadam)
    ranges: ClassVar = {
        "lr": Range(0),
        "beta1": Range(0, below=1),
        "beta2": Range(0, below=1),
        "eps": Range(0),
        "weight_decay": Range(0),
        "momentum_decay": Range(0),
    }
    switches = ("decoupled_weight_decay", "maximize")
    counters = ("step", "mu_product")

    def __init__(
        self,
        params: Params,
        lr: Numbers = 2e-3,
        betas: Pairs = (0.9, 0.999),
        eps: Numbers = 1e-8,
        weight_decay: Numbers = 0,
        momentum_decay: Numbers = 4e-3,
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
                "momentum_decay": momentum_decay,
                "decoupled_weight_decay": decoupled_weight_decay,
                "maximize": maximize,
            },
        )

    def state_names(self, flags: Flags) -> tuple[str, ...]:
        """Return the names of the counters and of the averages of gradients and squares."""
        return ("step", "mu_product", "exp_avg", "exp_avg_sq")

    def initial_state(self, hyper: Hyper) -> dict[str, Tensor]:
        """Return 1 for the product of no momenta."""
        return {"mu_product": torch.ones_like(hyper["lr"])}
