"""Build the body of an array: a copy of the first model with the tensors and numbers of all models."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wattline.fusion.architecture_check import find_shared_tensors, is_equivalent
from wattline.fusion.lowering.forward import AttributePath
from wattline.fusion.member_numbers import find_device, find_differing_numbers, register_numbers
from wattline.fusion.module_state import TORCH_ATTRIBUTES, named_tensors


def stack_models(
    models: Sequence[nn.Module],
) -> tuple[nn.Module, dict[str, Tensor], dict[AttributePath, Tensor]]:
    """Return the body of an array of *models*, the tensors that it stores once, and stacked attributes."""
    common = find_shared_tensors(models)
    states = [named_tensors(model) for model in models]
    memo: dict[int, Any] = {}
    for name, t in common.items():
        is_one_object = all(state[name] is t for state in states)
        memo[id(t)] = t if is_one_object else nn.Parameter(t.detach().clone(), requires_grad=False)
    for name, first in states[0].items():
        if name not in common:
            rows = torch.stack([state[name].detach() for state in states])
            memo[id(first)] = (
                nn.Parameter(rows, first.requires_grad) if isinstance(first, nn.Parameter) else rows
            )
    carried = _stack_attributes(models, memo)
    body = copy.deepcopy(models[0], memo)
    for (path, name), values in find_differing_numbers(models).items():
        register_numbers(body.get_submodule(path), name, values, find_device(body))
    return body, common, carried


def _stack_attributes(models: Sequence[nn.Module], memo: dict[int, Any]) -> dict[AttributePath, Tensor]:
    """Stack tensors in plain attributes that differ between members; add their copies to *memo*."""
    stacked = {}
    for path, module in models[0].named_modules():
        for name, value in vars(module).items():
            if not isinstance(value, Tensor) or name in TORCH_ATTRIBUTES:
                continue
            memo[id(value)] = value.detach().clone()
            all_have = [vars(model.get_submodule(path))[name] for model in models]
            if not value.is_leaf or any(not is_equivalent(value, other) for other in all_have):
                stacked[path, name] = torch.stack([t.detach() for t in all_have])
    return stacked
