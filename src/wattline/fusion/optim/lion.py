"""Lion of stacked parameters: the sign of an interpolated momentum (Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from wattline.fusion.optim.broadcast import MemberVectors
from wattline.fusion.optim.gradients import shrink_weights
from wattline.fusion.optim.hyperparameters import Range
from wattline.fusion.optim.optimizer import ArrayOptimizer, Numbers, Pairs
from wattline.fusion.optim.param_groups import Params
from wattline.fusion.optim.update import Flags, Hyper, State, step_counters


def lion(params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags) -> None:
    """Make one step of Lion, in place, with weight decay applied to the parameter itself."""
    shrink_weights(params, hyper, flags)
    for step in step_counters(state):
        step.add_(1)
    beta1, beta2 = hyper["beta1"], hyper["beta2"]
    factors = MemberVectors(-hyper["lr"], beta1, 1 - beta1, beta2, 1 - beta2)
    for param, grad, own in zip(params, grads, state, strict=True):
        rate, momentum, weight, decay, gain = factors.aligned_with(param)
        mean = own["exp_avg"]
        param.addcmul_((mean * momentum).addcmul_(grad, weight).sign_(), rate)
        mean.mul_(decay).addcmul_(grad, gain)


class Lion(ArrayOptimizer):
    """Lion with one or B values for each of lr, betas and weight_decay.

    PyTorch has no Lion. `member_state_dict` has the format that ordinary implementations share: parameter
    groups with lr, betas and weight_decay, and for each parameter `exp_avg`.
    """

    torch_class = None
    rule = staticmethod(lion)
    ranges: ClassVar = {
        "lr": Range(0),
        "beta1": Range(0, below=1),
        "beta2": Range(0, below=1),
        "weight_decay": Range(0),
    }
    switches = ()

    def __init__(
        self,
        params: Params,
        lr: Numbers = 1e-4,
        betas: Pairs = (0.9, 0.99),
        weight_decay: Numbers = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def state_names(self, flags: Flags) -> tuple[str, ...]:
        """Return the names of the step counter (0: no momentum yet) and of the momentum."""
        return ("step", "exp_avg")

    def to_torch_state(self, own: dict[str, Tensor], hyper: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return only the momentum."""
        return {"exp_avg": own["exp_avg"]}

    def from_torch_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the momentum, if there is one, and a step count that marks it as used."""
        return {"exp_avg": state["exp_avg"], "step": 1} if "exp_avg" in state else {}
