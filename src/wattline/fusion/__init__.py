"""Many models of one architecture trained as one array."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "FusedArray": "array",
    "FusionWarning": "settle",
    "SGD": "optim",
    "Step": "step",
    "Adadelta": "optim",
    "Adam": "optim",
    "AdamW": "optim",
    "RMSprop": "optim",
    "Scaler": "scale",
    "Schedule": "schedule",
    "Session": "members",
    "Ways": "lower",
    "clip_grad_norm_": "clip",
    "clip_grad_value_": "clip",
    "check": "equality",
    "explain": "lowered",
    "fuse": "array",
    "main": "entry",
    "train_step": "step",
    "Objective": "tuning.objective",
    "Float": "tuning.space",
    "Int": "tuning.space",
    "Choice": "tuning.space",
    "Hyperband": "tuning.halving",
    "ASHA": "tuning.halving",
    "tune": "tuning.drive",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
