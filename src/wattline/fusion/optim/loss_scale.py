"""Loss scaling for float16, one scale per member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wattline.errors import ConfigError
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.broadcast import Spread
from wattline.fusion.optim.clip import member_norms
from wattline.fusion.optim.hyperparameters import Range, for_all, joining, vector

_NUMBERS = {"growth_factor": Range(1), "backoff_factor": Range(0, below=1), "growth_interval": Range(1)}


class Scaler:
    """`torch.amp.GradScaler` for an array: a member whose gradients overflow is skipped alone.

    >>> scaler.scale(losses).sum().backward()  # losses: [B]
    >>> scaler.step(optimiser)
    >>> scaler.update()

    Every number is one for all members or one per member. `scales` and `streaks` (steps since a member last
    overflowed or grew) are tensors of [B], which a compiled step can give to `unscale` and `adjust`.
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
        given = {
            "growth_factor": growth_factor,
            "backoff_factor": backoff_factor,
            "growth_interval": growth_interval,
        }
        self.numbers = {name: vector(name, value, width, _NUMBERS[name]) for name, value in given.items()}
        self._given = for_all({"init_scale": init_scale, **given})
        self._found: dict[int, Tensor] = {}
        self._stepped: set[int] = set()

    def scale(self, losses: Tensor) -> Tensor:
        """The losses of all members, [B] or [B, ...], each times its scale."""
        if not losses.ndim or losses.shape[0] != self.width:
            raise ConfigError(f"expected one loss for each of {self.width} members, got {list(losses.shape)}")
        return losses * self.scales.to(losses.device).view(-1, *[1] * (losses.ndim - 1))

    def unscale_(self, optimiser: ArrayOptimizer) -> Tensor:
        """Take the scales out of the gradients, to clip them for example; gives who overflowed, [B]."""
        if id(optimiser) in self._found:
            raise ConfigError("the gradients of this optimiser have been unscaled since the last update()")
        grads = [param.grad for param in optimiser.parameters() if param.grad is not None]
        if not grads:
            raise ConfigError("there are no gradients to unscale")
        self._found[id(optimiser)] = unscale(grads, self.scales)
        return self._found[id(optimiser)]

    def step(self, optimiser: ArrayOptimizer) -> None:
        """Update the members whose gradients are finite; of the others nothing changes, state included."""
        if id(optimiser) in self._stepped:
            raise ConfigError("step() has been called for this optimiser since the last update()")
        if id(optimiser) not in self._found:
            self.unscale_(optimiser)
        optimiser.step(active=~self._found[id(optimiser)])
        self._stepped.add(id(optimiser))

    def update(self) -> None:
        """Lower the scales of members who overflowed; raise those of members who have not for long enough."""
        if not self._found:
            raise ConfigError("no gradients have been unscaled since the last update()")
        found = torch.stack([each.to(self.device) for each in self._found.values()]).any(0)
        adjust(self.scales, self.streaks, found, self.numbers)
        self._found.clear()
        self._stepped.clear()

    def keep(self, rows: Sequence[int]) -> None:
        """Keep the members *rows*, in that order."""
        chosen = list(rows)
        self.scales, self.streaks = self.scales[chosen].clone(), self.streaks[chosen].clone()
        self.numbers = {name: numbers[chosen].clone() for name, numbers in self.numbers.items()}
        self.width = len(chosen)

    def extend(self, count: int, **numbers: Any) -> None:
        """Let *count* members join, with numbers of their own or those that were for all."""
        new = Scaler(count, **joining(self._given, numbers), device=self.device)
        self.scales = torch.cat([self.scales, new.scales])
        self.streaks = torch.cat([self.streaks, new.streaks])
        self.numbers = {name: torch.cat([old, new.numbers[name]]) for name, old in self.numbers.items()}
        self.width += count

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, and the numbers."""
        return {"scales": self.scales.clone(), "streaks": self.streaks.clone(), **self.numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict()` of as many members."""
        if (saved := len(state["scales"])) != self.width:
            raise ConfigError(f"the saved state has {saved} members, this scaler has {self.width}")
        self.scales = state["scales"].to(self.device, copy=True)
        self.streaks = state["streaks"].to(self.device, copy=True)
        self.numbers = {name: state[name].clone() for name in self.numbers}


@torch.no_grad()
def unscale(grads: Sequence[Tensor], scales: Tensor) -> Tensor:
    """Divide gradients by the scales, in place; who has any that is not finite, [B]. Can be traced."""
    # The largest absolute value is not finite as soon as one entry is not, and needs no temporaries.
    found = [~member_norms(grad, torch.inf).isfinite().to(scales.device) for grad in grads if grad.numel()]
    factors = Spread(scales.double().reciprocal().float())
    for grad in grads:
        grad.mul_(*factors.over(grad))
    return torch.stack(found).any(0)


@torch.no_grad()
def adjust(scales: Tensor, streaks: Tensor, found: Tensor, numbers: dict[str, Tensor]) -> None:
    """Change scales and streaks, in place, after a step in which *found* overflowed. Can be traced."""
    growth, backoff, interval = (
        numbers[name].to(scales.device) for name in ("growth_factor", "backoff_factor", "growth_interval")
    )
    streak = streaks + 1
    due = streak == interval
    grown = (scales * growth).to(scales.dtype)
    kept = torch.where(due & grown.isfinite(), grown, scales)
    scales.copy_(torch.where(found, (scales * backoff).to(scales.dtype), kept))
    streaks.copy_(torch.where(found | due, torch.zeros_like(streak), streak))
