"""Checks of the options of a step, and settings of PyTorch that it depends on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wattline.errors import ConfigError, NotFusible
from wattline.fusion.array import FusedArray
from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.loss_scale import Scaler
from wattline.fusion.torch_internals import tree_flatten


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
    if amp is torch.float16 and scaler is None:
        raise ConfigError(
            "float16 loses small gradients without a scaler", "pass scaler=wattline.fusion.Scaler(len(array))"
        )
    if not isinstance(array, FusedArray):
        raise ConfigError(f"array is a {type(array).__name__}, expected one from wattline.fusion.fuse")
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
        raise ConfigError("the optimiser has parameters that do not belong to the array")


def warn_of_stacked(batch: Any, size: int) -> None:
    """Warn if every tensor of the *batch* looks as if it had a row for each of *size* members."""
    shapes = [leaf.shape for leaf in tree_flatten(batch)[0] if isinstance(leaf, Tensor)]
    if size > 1 and len(shapes) > 1 and all(len(s) > 1 and s[0] == size for s in shapes):
        warnings.warn(
            f"all tensors of the batch have {size} rows, as many as there are members, but every member "
            "gets all of them: pass members=True if row i belongs to member i",
            FusionWarning,
            stacklevel=3,
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
