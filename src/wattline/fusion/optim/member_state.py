"""Conversion of one member's optimiser state from and to ordinary optimisers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wattline.errors import ConfigError
from wattline.fusion.optim.saved_state import check_member_state

if TYPE_CHECKING:
    from .optimizer import ArrayOptimizer


def ordinary_class(optimiser: ArrayOptimizer) -> Any:
    """Return `torch.optim`'s class of the same name; raise `ConfigError` if PyTorch has none."""
    if optimiser.torch_class is None:
        raise ConfigError(
            f"PyTorch has no {type(optimiser).__name__} to compare with, expected an optimiser that it has",
            "compare with fusion.Adam, or another one of torch.optim",
        )
    return optimiser.torch_class


def state_dict(optimiser: ArrayOptimizer, member: int) -> dict[str, Any]:
    """Return the state dict that `torch.optim`'s class of the same name would have for this member."""
    _check(optimiser, member)
    optimiser.hyper_tensors()
    plain = optimiser.ordinary_defaults()
    state: dict[int, dict[str, Tensor]] = {}
    groups = []
    count = 0
    for group in optimiser.param_groups:
        hyper = optimiser.member_hyper(group, member)
        switches = {name: group[name] for name in optimiser.switches}
        ids = list(range(count, count + len(group["params"])))
        count += len(ids)
        groups.append({**plain, **hyper, **switches, "params": ids})
        for place, param in zip(ids, group["params"], strict=True):
            own = optimiser.state.get(param, {})
            if own and (optimiser.eager_state or own["step"][member] > 0):
                rows = {
                    name: _scalar(tensor, member) if name in optimiser.counters else tensor[member].clone()
                    for name, tensor in own.items()
                }
                state[place] = optimiser.to_torch_state(rows, hyper)
    return {"state": state, "param_groups": groups}


def load(optimiser: ArrayOptimizer, member: int, saved: Mapping[str, Any]) -> None:
    """Load the hyper-parameters and the state of one member from a state dict."""
    _check(optimiser, member)
    check_member_state(optimiser, saved)
    groups = saved["param_groups"]
    for group, other in zip(optimiser.param_groups, groups, strict=True):
        optimiser.write_member(group, member, other)
    optimiser.init_state()
    for group, other, hyper in zip(optimiser.param_groups, groups, optimiser.hyper_tensors(), strict=True):
        starts = optimiser.initial_state(hyper)
        for param, place in zip(group["params"], other["params"], strict=True):
            if own := optimiser.state.get(param, {}):
                rows = optimiser.from_torch_state(saved["state"].get(place, {}))
                own.update({name: own[name].clone() for name in optimiser.counters})
                for name, tensor in own.items():
                    tensor[member] = rows.get(name, starts[name][member] if name in starts else 0)
    optimiser.share_counters()


def _scalar(tensor: Tensor, member: int) -> Tensor:
    kind = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    return tensor[member].to(device="cpu", dtype=kind, copy=True)


def _check(optimiser: ArrayOptimizer, member: int) -> None:
    if not 0 <= member < optimiser.width:
        raise ConfigError(f"no member {member}, expected 0 to {optimiser.width - 1}")
