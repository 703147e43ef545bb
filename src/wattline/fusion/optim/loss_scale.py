"""Loss scaling for float16, with one scale per member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wattline.errors import ConfigError
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.broadcast import MemberVectors
from wattline.fusion.optim.clip import member_norms
from wattline.fusion.optim.hyperparameters import Range, mark_varying, merge_joining, vector
from wattline.fusion.optim.optimizer import require_array_optimiser

_NUMBERS = {"growth_factor": Range(1), "backoff_factor": Range(0, below=1), "growth_interval": Range(1)}


class Scaler:
    """`torch.amp.GradScaler` for an array: only members with overflowing gradients skip the step.

    >>> scaler.scale(losses).sum().backward()  # losses: [B]
    >>> scaler.step(optimiser)
    >>> scaler.update()

    Every number is one for all members or one per member. `scales` and `streaks` (steps since a member last
    overflowed or grew) are tensors of [B], which a compiled step can pass to `unscale` and `adjust_scales`.
    """

    def __init__(
        self,
        width: int,
        *,
        init_scale: Any = 2.0**16,
        growth_factor: Any = 2.0,
        backoff_factor: Any = 0.5,
        growth_interval: Any = 2000,
        device: Any = "cpu",
    ) -> None:
        self.width = width
        self.device = torch.device(device)
        self.scales = vector("init_scale", init_scale, width, Range(0)).to(self.device, torch.float32)
        self.streaks = torch.zeros(width, dtype=torch.int32, device=self.device)
        options = {
            "growth_factor": growth_factor,
            "backoff_factor": backoff_factor,
            "growth_interval": growth_interval,
        }
        self.numbers = {name: vector(name, value, width, _NUMBERS[name]) for name, value in options.items()}
        self._initial_values = mark_varying({"init_scale": init_scale, **options})
        self._overflowed: dict[int, Tensor] = {}
        self._stepped: set[int] = set()

    def scale(self, losses: Tensor) -> Tensor:
        """Return the losses of all members, [B] or [B, ...], each multiplied by its scale."""
        if not losses.ndim or losses.shape[0] != self.width:
            raise ConfigError(f"expected one loss for each of {self.width} members, got {list(losses.shape)}")
        return losses * self.scales.to(losses.device).view(-1, *[1] * (losses.ndim - 1))

    def unscale_(self, optimiser: ArrayOptimizer) -> Tensor:
        """Divide the gradients by the scales, as before clipping; return which members overflowed, [B]."""
        require_array_optimiser(optimiser)
        if id(optimiser) in self._overflowed:
            raise ConfigError("the gradients of this optimiser have been unscaled since the last update()")
        grads = [param.grad for param in optimiser.parameters() if param.grad is not None]
        if not grads:
            raise ConfigError("no parameter has a gradient to unscale, expected a backward() first")
        self._overflowed[id(optimiser)] = unscale(grads, self.scales)
        return self._overflowed[id(optimiser)]

    def step(self, optimiser: ArrayOptimizer) -> None:
        """Update the members with finite gradients; the others stay unchanged, including their state."""
        if id(optimiser) in self._stepped:
            raise ConfigError("step() has been called for this optimiser since the last update()")
        if id(optimiser) not in self._overflowed:
            self.unscale_(optimiser)
        optimiser.step(active=~self._overflowed[id(optimiser)])
        self._stepped.add(id(optimiser))

    def update(self) -> None:
        """Lower the scales of members that overflowed; raise those that have not for long enough."""
        if not self._overflowed:
            raise ConfigError("no gradients have been unscaled since the last update()")
        overflowed = torch.stack([each.to(self.device) for each in self._overflowed.values()]).any(0)
        adjust_scales(self.scales, self.streaks, overflowed, self.numbers)
        self._overflowed.clear()
        self._stepped.clear()

    def keep(self, rows: Sequence[int]) -> None:
        """Keep the members *rows*, in that order."""
        kept = list(rows)
        self.scales, self.streaks = self.scales[kept].clone(), self.streaks[kept].clone()
        self.numbers = {name: numbers[kept].clone() for name, numbers in self.numbers.items()}
        self.width = len(kept)

    def extend(self, count: int, **numbers: Any) -> None:
        """Add *count* members, with numbers of their own or those given for all members."""
        new = Scaler(count, **merge_joining(self._initial_values, numbers), device=self.device)
        self.scales = torch.cat([self.scales, new.scales])
        self.streaks = torch.cat([self.streaks, new.streaks])
        self.numbers = {name: torch.cat([old, new.numbers[name]]) for name, old in self.numbers.items()}
        self.width += count

    def state_dict(self) -> dict[str, Any]:
        """Return the scales, the streaks and the numbers."""
        return {"scales": self.scales.clone(), "streaks": self.streaks.clone(), **self.numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict()` of the same number of members."""
        names = ("scales", "streaks", *self.numbers)
        if missing := [name for name in names if name not in state]:
            raise ConfigError(
                f"the saved state has no {missing[0]}, expected {', '.join(names)}",
                "load a state_dict() of fusion.Scaler; that of a GradScaler is of one model",
            )
        if (saved := len(state["scales"])) != self.width:
            raise ConfigError(f"the saved state has {saved} members, this scaler has {self.width}")
        self.scales = state["scales"].to(self.device, copy=True)
        self.streaks = state["streaks"].to(self.device, copy=True)
        self.numbers = {name: state[name].clone() for name in self.numbers}


@torch.no_grad()
def unscale(grads: Sequence[Tensor], scales: Tensor) -> Tensor:
    """Divide gradients by the scales, in place; return which members have non-finite ones, [B].

    Can be traced.
    """
    # The largest absolute value is non-finite if any entry is, and needs no temporaries.
    overflowed = [
        ~member_norms(grad, torch.inf).isfinite().to(scales.device) for grad in grads if grad.numel()
    ]
    factors = MemberVectors(scales.double().reciprocal().float())
    for grad in grads:
        grad.mul_(*factors.aligned_with(grad))
    return torch.stack(overflowed).any(0)


@torch.no_grad()
def adjust_scales(scales: Tensor, streaks: Tensor, overflowed: Tensor, numbers: dict[str, Tensor]) -> None:
    """Update scales and streaks, in place, after a step in which members *overflowed*; can be traced."""
    growth, backoff, interval = (
        numbers[name].to(scales.device) for name in ("growth_factor", "backoff_factor", "growth_interval")
    )
    streak = streaks + 1
    due = streak == interval
    grown = (scales * growth).to(scales.dtype)
    raised = torch.where(due & grown.isfinite(), grown, scales)
    scales.copy_(torch.where(overflowed, (scales * backoff).to(scales.dtype), raised))
    streaks.copy_(torch.where(overflowed | due, torch.zeros_like(streak), streak))
