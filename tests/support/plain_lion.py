"""An ordinary optimiser of one model, as a reference: Lion (Chen et al. 2023, algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class PlainLion(torch.optim.Optimizer):
    """Lion as the paper states it, for one model."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                own = self.state[param]
                momentum = own.get("exp_avg", torch.zeros_like(param))
                direction = torch.sign(beta1 * momentum + (1 - beta1) * param.grad)
                param -= lr * (direction + group["weight_decay"] * param)
                own["exp_avg"] = beta2 * momentum + (1 - beta2) * param.grad
