"""Refusal of PyTorch's schedulers, which set one learning rate for all members."""

from __future__ import annotations

from typing import Any

import torch

from wattline.errors import ConfigError


class OptimizerWithoutScheduler(torch.optim.Optimizer):
    """An optimiser that no scheduler of PyTorch can be created for."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; raise `ConfigError` when a scheduler of PyTorch attaches itself to `step`."""
        if name == "step" and hasattr(value, "_wrapped_by_lr_sched"):
            raise ConfigError(
                "a scheduler of torch.optim.lr_scheduler sets one learning rate, but each member has its own",
                "pass its class: fusion.Schedule(optimiser, StepLR, step_size=10)",
            )
        super().__setattr__(name, value)
