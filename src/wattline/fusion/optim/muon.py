"""Muon of stacked matrices: momentum, made orthogonal by Newton-Schulz iterations (Jordan et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from wattline.errors import ConfigError
from wattline.fusion.optim.broadcast import MemberVectors
from wattline.fusion.optim.gradients import shrink_weights
from wattline.fusion.optim.hyperparameters import Range
from wattline.fusion.optim.optimizer import ArrayOptimizer, Numbers
from wattline.fusion.optim.param_groups import Group, Params, trained_params
from wattline.fusion.optim.update import Flags, Hyper, Rule, State, step_counters

_MAX_STEPS = 99  # of Newton-Schulz, as in torch.optim.Muon
_ADJUSTMENTS = ("original", "match_rms_adamw")

Coefficients = tuple[float, float, float]


@dataclass(frozen=True)
class MuonRule:
    """One step of Muon, in place; the settings are those that all members have in common."""

    coefficients: Coefficients
    steps: int
    adjustment: str

    def __call__(
        self, params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags
    ) -> None:
        """Update the matrices *params* of [B, m, n]."""
        shrink_weights(params, hyper, flags)
        for step in step_counters(state):
            step.add_(1)
        factors = MemberVectors(-hyper["lr"], hyper["momentum"], 1 - hyper["momentum"])
        eps = MemberVectors(hyper["eps"])
        for param, grad, own in zip(params, grads, state, strict=True):
            rate, momentum, gain = factors.aligned_with(param)
            buffer = own["momentum_buffer"].lerp_(grad, gain)
            direction = (grad.lerp(buffer, momentum) if "nesterov" in flags else buffer).bfloat16()
            (least,) = eps.aligned_with(direction)
            direction = orthogonalise(direction, least, self.coefficients, self.steps)
            param.addcmul_(direction.to(param.dtype), rate * self._scale(*param.shape[1:]))

    def _scale(self, rows: int, columns: int) -> float:
        if self.adjustment == "match_rms_adamw":
            return 0.2 * math.sqrt(max(rows, columns))
        return math.sqrt(max(1.0, rows / columns))


def orthogonalise(matrices: Tensor, eps: Tensor, coefficients: Coefficients, steps: int) -> Tensor:
    """Return matrices of [B, m, n] with singular values near 1, by iterations of a polynomial of degree 5.

    Each is divided by its norm first, but by at least *eps*, [B, 1, 1].
    """
    linear, cubic, quintic = coefficients
    is_tall = matrices.shape[1] > matrices.shape[2]
    result = matrices.mT if is_tall else matrices
    norms: Tensor = torch.linalg.vector_norm(result, dim=(1, 2), keepdim=True)
    result = result / torch.maximum(norms, eps)
    for _ in range(steps):
        gram = torch.bmm(result, result.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic)
        result = torch.baddbmm(result, polynomial, result, beta=linear)
    return result.mT if is_tall else result


class Muon(ArrayOptimizer):
    """`torch.optim.Muon` with one or B values for each of lr, weight_decay, momentum and eps.

    All parameters must be matrices, [B, m, n] in an array. The iterations are computed in bfloat16, so a
    member agrees with its separate training to the rounding of bfloat16.
    """

    torch_class = torch.optim.Muon
    update_tolerance = 0.5  # the iterations multiply the rounding of bfloat16
    ranges: ClassVar = {"lr": Range(0), "weight_decay": Range(0), "momentum": Range(0), "eps": Range(0)}
    switches = ("nesterov", "ns_coefficients", "ns_steps", "adjust_lr_fn")

    def __init__(
        self,
        params: Params,
        lr: Numbers = 1e-3,
        weight_decay: Numbers = 0.1,
        momentum: Numbers = 0.95,
        nesterov: bool = True,
        ns_coefficients: Coefficients = (3.4445, -4.7750, 2.0315),
        eps: Numbers = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "nesterov": nesterov,
                "ns_coefficients": ns_coefficients,
                "eps": eps,
                "ns_steps": ns_steps,
                "adjust_lr_fn": adjust_lr_fn,
            },
        )

    def group_rule(self, group: Group) -> Rule:
        """Return the rule with the settings of the group."""
        coefficients, steps, adjustment = (self.read_switch(name, group[name]) for name in self.switches[1:])
        return MuonRule(coefficients, steps, adjustment)

    def read_switch(self, name: str, value: Any) -> Any:
        """Return a setting in the form that the rule uses; no adjustment means the original one."""
        if name == "ns_coefficients":
            return tuple(float(number) for number in value)
        if name == "ns_steps":
            return int(value)
        return value or _ADJUSTMENTS[0] if name == "adjust_lr_fn" else bool(value)

    def state_names(self, flags: Flags) -> tuple[str, ...]:
        """Return the names of the step counter (0: no buffer yet) and of the momentum buffer."""
        return ("step", "momentum_buffer")

    def to_torch_state(self, own: dict[str, Tensor], hyper: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return only the buffer."""
        return {"momentum_buffer": own["momentum_buffer"]}

    def from_torch_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the buffer, if there is one, and a step count that marks it as used."""
        buffer = state.get("momentum_buffer")
        return {} if buffer is None else {"momentum_buffer": buffer, "step": 1}

    def _check(self, group: Group) -> None:
        for param in trained_params(group):
            if param.ndim != 3:
                raise ConfigError(
                    f"Muon trains matrices, but a parameter has the shape {list(param.shape[1:])} "
                    f"in each member, expected [rows, columns]",
                    "pass [p for p in array.parameters() if p.ndim == 3], and the others to fusion.AdamW",
                )
        coefficients, steps, adjustment = (group[name] for name in self.switches[1:])
        if not isinstance(coefficients, tuple | list) or len(coefficients) != 3:
            raise ConfigError(f"ns_coefficients is {coefficients!r}, expected three numbers for all members")
        if not isinstance(steps, int) or not 0 <= steps <= _MAX_STEPS:
            raise ConfigError(f"ns_steps is {steps!r}, expected an integer from 0 to {_MAX_STEPS}")
        if adjustment is not None and adjustment not in _ADJUSTMENTS:
            raise ConfigError(f"adjust_lr_fn is {adjustment!r}, expected one of {', '.join(_ADJUSTMENTS)}")
