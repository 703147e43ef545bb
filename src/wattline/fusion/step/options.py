"""Checks of the options of a step, and settings of PyTorch that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wattline.errors import ConfigError, NotFusible
from wattline.fusion.array import FusedArray
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.loss_scale import Scaler


def check_options(
    array: FusedArray,
    loss: Callable[..., Tensor] | Sequence[nn.Module],
    optimiser: ArrayOptimizer,
    width: int | str | None,
    compile: bool | str,
    amp: torch.dtype | None,
    scaler: Scaler | None,
) -> None:
    """Raise `ConfigError` or `NotFusible` unless a step can be made with these options of `train_step`."""
    if isinstance(width, str) and width != "auto":
        raise ConfigError(f"width is {width!r}, expected a number of members or 'auto'")
    if isinstance(width, int) and width < 1:
        raise ConfigError(f"width must be at least 1, got {width}")
    if amp is not None and not isinstance(amp, torch.dtype):
        raise ConfigError(f"amp is {amp!r}, expected a type", "pass amp=torch.bfloat16")
    if scaler is not None and not isinstance(scaler, Scaler):
        raise ConfigError(
            f"scaler is a {type(scaler).__name__}, which has one scale for all members",
            "pass scaler=wattline.fusion.Scaler(len(array))",
        )
    if amp is torch.float16 and scaler is None:
        raise ConfigError(
            "float16 loses small gradients without a scaler", "pass scaler=wattline.fusion.Scaler(len(array))"
        )
    if not isinstance(array, FusedArray):
        raise ConfigError(
            f"array is a {type(array).__name__}, expected one from wattline.fusion.fuse",
            "pass train_step(fusion.fuse(models), loss, optimiser)",
        )
    is_function = callable(loss) and not isinstance(loss, torch.optim.Optimizer)
    if not is_function and not isinstance(loss, list | tuple):
        what = f"{loss!r}" if isinstance(loss, str) else f"of type {type(loss).__name__}"
        raise ConfigError(
            f"the loss is {what}, expected a function of (output, target)",
            "pass train_step(array, F.cross_entropy, optimiser)",
        )
    if not isinstance(optimiser, torch.optim.Optimizer):
        raise ConfigError(
            f"the optimiser is a {type(optimiser).__name__}, expected one of wattline.fusion",
            "pass train_step(array, loss, fusion.Adam(array, lr=1e-3))",
        )
    if not isinstance(optimiser, ArrayOptimizer):
        kind = type(optimiser).__name__
        raise ConfigError(
            f"the optimiser is {type(optimiser).__module__}.{kind}, which updates all members as one",
            f"use wattline.fusion.{kind}(array, …)",
        )
    if compile not in (True, False, "graph"):
        raise ConfigError(f'compile is {compile!r}, expected True, False or "graph"')
    if isinstance(loss, nn.Module) and (own := [n for n, p in loss.named_parameters() if p.requires_grad]):
        raise NotFusible(
            f"the loss has parameters of its own ({own[0]}), which no member has a copy of",
            "make the loss a part of the model, or freeze them with requires_grad_(False)",
        )
    if {id(p) for p in optimiser.parameters()} - {id(p) for p in array.parameters()}:
        raise ConfigError(
            "the optimiser has parameters that do not belong to the array",
            f"create it for this array: fusion.{type(optimiser).__name__}(array, …)",
        )


def check_gradients_enabled() -> None:
    """Raise `ConfigError` under `torch.no_grad()`, where a step would train nothing."""
    if not torch.is_grad_enabled():
        mode = "inference_mode" if torch.is_inference_mode_enabled() else "no_grad"
        raise ConfigError(
            f"a training step is called under torch.{mode}(), where no gradients are computed",
            "call it outside, or evaluate by array(x)",
        )


def read_torch_settings() -> tuple[Any, ...]:
    """Return settings of PyTorch that operators depend on."""
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_float32_matmul_precision(),
        torch.is_inference_mode_enabled(),
        torch.get_num_threads(),
    )
