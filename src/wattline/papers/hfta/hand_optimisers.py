"""Optimisers of B members written by hand, with one value of each hyper-parameter for each member.

The factors of an update are computed once a step instead of once for each parameter, which favours them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


class _HandOptimiser:
    """State and values of B members; `step` is an eager loop over parameters, as in torch's single-tensor."""

    state_names: tuple[str, ...]

    def __init__(self, parameters: Iterable[Tensor], members: int, **values: float | Sequence[float]) -> None:
        self.parameters = list(parameters)
        dtype = self.parameters[0].dtype
        self.values = {
            name: torch.as_tensor(value, dtype=dtype).expand(members).contiguous()
            for name, value in values.items()
        }
        self.state = [tuple(torch.zeros_like(p) for _ in self.state_names) for p in self.parameters]
        self.steps = 0

    def step(self) -> None:
        """Update all parameters of all members."""
        raise NotImplementedError

    def zero_grad(self) -> None:
        """Drop the gradients, as `torch.optim` does."""
        for parameter in self.parameters:
            parameter.grad = None


def _broadcast(vectors: Iterable[Tensor], parameter: Tensor) -> list[Tensor]:
    """View vectors [B] as [B, 1, …] for a parameter [B, …]."""
    shape = (-1,) + (1,) * (parameter.ndim - 1)
    return [vector.view(shape) for vector in vectors]


class HandAdam(_HandOptimiser):
    """Adam with one value of lr, beta1, beta2 and eps for each member."""

    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        parameters: Iterable[Tensor],
        members: int,
        lr: float | Sequence[float] = 1e-3,
        betas: tuple[float | Sequence[float], float | Sequence[float]] = (0.9, 0.999),
        eps: float | Sequence[float] = 1e-8,
    ) -> None:
        super().__init__(parameters, members, lr=lr, beta1=betas[0], beta2=betas[1], eps=eps)

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters of all members."""
        self.steps += 1
        lr, beta1, beta2, eps = self.values.values()
        size = lr / (beta1**self.steps - 1)  # negative
        # p += size * m / (sqrt(v) / root + eps) = m / (sqrt(v) * scale + shift)
        scale = 1 / ((1 - beta2**self.steps).sqrt() * size)
        vectors = (1 - beta1, beta2, 1 - beta2, scale, eps / size)
        for parameter, (mean, square) in zip(self.parameters, self.state, strict=True):
            grad = parameter.grad
            if grad is None:
                continue
            rest1, kept2, rest2, factor, shift = _broadcast(vectors, parameter)
            mean.lerp_(grad, rest1)
            square.mul_(kept2).addcmul_(grad * rest2, grad)
            parameter.addcdiv_(mean, square.sqrt().mul_(factor).add_(shift))


class HandAdadelta(_HandOptimiser):
    """Adadelta with one value of lr, rho and eps for each member."""

    state_names = ("square_avg", "acc_delta")

    def __init__(
        self,
        parameters: Iterable[Tensor],
        members: int,
        lr: float | Sequence[float] = 1.0,
        rho: float | Sequence[float] = 0.9,
        eps: float | Sequence[float] = 1e-6,
    ) -> None:
        super().__init__(parameters, members, lr=lr, rho=rho, eps=eps)

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters of all members."""
        lr, rho, eps = self.values.values()
        vectors = (-lr, rho, 1 - rho, eps)
        for parameter, (square, moved) in zip(self.parameters, self.state, strict=True):
            grad = parameter.grad
            if grad is None:
                continue
            minus_lr, kept, rest, small = _broadcast(vectors, parameter)
            square.mul_(kept).addcmul_(grad * rest, grad)
            delta = moved.add(small).sqrt_().div_(square.add(small).sqrt_()).mul_(grad)
            moved.mul_(kept).addcmul_(delta * rest, delta)
            parameter.addcmul_(delta, minus_lr)


OPTIMISERS = {"Adam": HandAdam, "Adadelta": HandAdadelta}
