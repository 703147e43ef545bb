"""Adagrad of stacked parameters."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from wattline.fusion.optim.broadcast import MemberVectors
from wattline.fusion.optim.gradients import prepare_gradients
from wattline.fusion.optim.hyperparameters import Range
from wattline.fusion.optim.optimizer import ArrayOptimizer, Numbers
from wattline.fusion.optim.param_groups import Group, Params
from wattline.fusion.optim.update import Flags, Hyper, State, step_counters


def adagrad(
    params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags
) -> None:
    """Make one step of Adagrad, in place."""
    grads = prepare_gradients(params, grads, hyper, flags)
    factors = {}
    for step in step_counters(state):
        lr, decay, eps = (hyper[name].to(step.device) for name in ("lr", "lr_decay", "eps"))
        factors[id(step)] = MemberVectors(-lr / (1 + step * decay), eps)
        step.add_(1)
    for param, grad, own in zip(params, grads, state, strict=True):
        rate, eps = factors[id(own["step"])].aligned_with(param)
        total = own["sum"].addcmul_(grad, grad)
        param.addcdiv_(grad * rate, total.sqrt().add_(eps))


class Adagrad(ArrayOptimizer):
    """`torch.optim.Adagrad` with one or B values for each of its numbers.

    As there, `initial_accumulator_value` is read when parameters are added, and later when members join.
    """

    torch_class = torch.optim.Adagrad
    rule = staticmethod(adagrad)
    ranges: ClassVar = {
        "lr": Range(0),
        "lr_decay": Range(0),
        "weight_decay": Range(0),
        "initial_accumulator_value": Range(0),
        "eps": Range(0),
    }
    switches = ("maximize",)
    eager_state = True

    def __init__(
        self,
        params: Params,
        lr: Numbers = 1e-2,
        lr_decay: Numbers = 0,
        weight_decay: Numbers = 0,
        initial_accumulator_value: Numbers = 0,
        eps: Numbers = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "lr_decay": lr_decay,
                "weight_decay": weight_decay,
                "initial_accumulator_value": initial_accumulator_value,
                "eps": eps,
                "maximize": maximize,
            },
        )

    @torch.no_grad()
    def add_param_group(self, param_group: Group) -> None:
        """Add a group of stacked parameters, and create its state."""
        super().add_param_group(param_group)
        self.init_state()

    def state_names(self, flags: Flags) -> tuple[str, ...]:
        """Return the names of the step counter and of the sum of squared gradients."""
        return ("step", "sum")

    def initial_state(self, hyper: Hyper) -> dict[str, Tensor]:
        """Return the initial sums."""
        return {"sum": hyper["initial_accumulator_value"]}
