"""Many models of one architecture trained as one array."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "CompiledFunction": "step.compiled_function",
    "FusedArray": "array",
    "FusionWarning": "lowering.fallback",
    "SGD": "optim",
    "Step": "step.train_step",
    "Adadelta": "optim",
    "Adam": "optim",
    "AdamW": "optim",
    "Adagrad": "optim",
    "Lion": "optim",
    "Muon": "optim",
    "NAdam": "optim",
    "RAdam": "optim",
    "RMSprop": "optim",
    "Scaler": "optim.loss_scale",
    "Schedule": "optim.schedule",
    "Session": "session",
    "Ways": "lowering.rules",
    "clip_grad_norm_": "optim.clip",
    "clip_grad_value_": "optim.clip",
    "check": "equality_check",
    "compile": "step.compiled_function",
    "explain": "lowering.report",
    "fuse": "array",
    "keep_freed_memory": "step.malloc",
    "main": "script_main",
    "train_step": "step.train_step",
    "Objective": "search.objective",
    "Float": "search.space",
    "Int": "search.space",
    "Choice": "search.space",
    "Hyperband": "search.halving",
    "ASHA": "search.halving",
    "tune": "search.tune",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
