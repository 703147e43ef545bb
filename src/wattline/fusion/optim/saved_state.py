"""Checks of saved optimiser states, before anything of them is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from wattline.errors import ConfigError

if TYPE_CHECKING:
    from .optimizer import ArrayOptimizer
    from .param_groups import Group

_YOUNG_SWITCHES = {"maximize", "decoupled_weight_decay"}  # missing in states of older versions of PyTorch


def check_array_state(optimiser: ArrayOptimizer, saved: Any) -> None:
    """Raise `ConfigError` unless *saved* is a `state_dict()` of an array like that of *optimiser*."""
    name = type(optimiser).__name__
    groups = _read_groups(optimiser, saved)
    for index, group in enumerate(groups):
        _check_group(optimiser, index, group, {*optimiser.keys, *optimiser.switches})
        rates = group["lr"]
        if not isinstance(rates, Tensor) or rates.ndim != 1:
            raise ConfigError(
                f"lr of group {index} of the saved state is {rates!r}, expected a vector of one per member",
                f"the state of one member is loaded by load_member(i, state); "
                f"load_state_dict needs a state_dict() of fusion.{name}",
            )
        if len(rates) != optimiser.width:
            raise ConfigError(
                f"the saved state has {len(rates)} members, this optimiser has {optimiser.width}"
            )
    _check_state_names(optimiser, saved)


def check_member_state(optimiser: ArrayOptimizer, saved: Any) -> None:
    """Raise `ConfigError` unless *saved* is the state of an ordinary optimiser for one member."""
    groups = _read_groups(optimiser, saved)
    required = {*optimiser.keys, *optimiser.switches} - _YOUNG_SWITCHES
    for index, (group, own) in enumerate(zip(groups, optimiser.param_groups, strict=True)):
        _check_group(optimiser, index, group, required)
        if isinstance(rate := group["lr"], Tensor) and rate.numel() != 1:
            raise ConfigError(
                f"lr of group {index} of the saved state has {rate.numel()} values, expected one",
                "the state of a whole array is loaded by load_state_dict(state)",
            )
        _check_switches(optimiser, own, group)
    _check_state_names(optimiser, saved)
    for group, own in zip(groups, optimiser.param_groups, strict=True):
        for place, param in zip(group["params"], own["params"], strict=True):
            if not param.requires_grad:
                continue
            for name, value in saved["state"].get(place, {}).items():
                expected = param.shape[1:] if name not in optimiser.counters else ()
                if isinstance(value, Tensor) and value.shape != expected:
                    raise ConfigError(
                        f"{name} of parameter {place} has the shape {list(value.shape)} in the saved state, "
                        f"expected {list(expected)}"
                    )


def _read_groups(optimiser: ArrayOptimizer, saved: Any) -> list[Any]:
    if not isinstance(saved, Mapping) or not {"state", "param_groups"} <= set(saved):
        content = (
            f"the keys {', '.join(map(str, list(saved)[:6])) or 'none'}"
            if isinstance(saved, Mapping)
            else f"the type {type(saved).__name__}"
        )
        raise ConfigError(
            f"the saved state has {content}, expected state and param_groups",
            "pass the state_dict() of an optimiser, not that of a model or of a whole checkpoint",
        )
    groups = saved["param_groups"]
    if incomplete := [index for index, group in enumerate(groups) if "params" not in group]:
        raise ConfigError(f"group {incomplete[0]} of the saved state has no params, expected their numbers")
    counts = [len(group["params"]) for group in optimiser.param_groups]
    if (saved_counts := [len(group["params"]) for group in groups]) != counts:
        raise ConfigError(f"the saved state has groups of {saved_counts} parameters, expected {counts}")
    return list(groups)


def _check_group(optimiser: ArrayOptimizer, index: int, group: Mapping[str, Any], required: set[str]) -> None:
    name = type(optimiser).__name__
    hint = f"load a state of {name}; other optimisers have other hyper-parameters"
    if missing := sorted(required - set(group)):
        raise ConfigError(
            f"group {index} of the saved state has no {missing[0]}, "
            f"expected the hyper-parameters of {name}: {', '.join(optimiser.keys)}",
            hint,
        )
    if foreign := sorted(set(group) & optimiser.foreign_names()):
        raise ConfigError(
            f"group {index} of the saved state has {foreign[0]}, which {name} does not have, "
            f"expected the hyper-parameters of {name}: {', '.join(optimiser.keys)}",
            hint,
        )


def _check_switches(optimiser: ArrayOptimizer, own: Group, saved: Mapping[str, Any]) -> None:
    for name in optimiser.switches:
        if optimiser.read_switch(name, saved.get(name, False)) != optimiser.read_switch(name, own[name]):
            raise ConfigError(f"the saved state has {name}={saved.get(name, False)}, the array {own[name]}")
    plain = optimiser.ordinary_defaults()
    name = "decoupled_weight_decay"  # the one difference between states of Adam and AdamW
    if name in plain and name not in optimiser.switches and bool(saved.get(name, plain[name])) != plain[name]:
        raise ConfigError(
            f"the saved state has {name}={saved[name]}, "
            f"but {type(optimiser).__name__} always has {name}={plain[name]}",
            "Adam's states are loaded by fusion.Adam, AdamW's by fusion.AdamW",
        )


def _check_state_names(optimiser: ArrayOptimizer, saved: Mapping[str, Any]) -> None:
    known = optimiser.state_names(frozenset({*optimiser.switches, *optimiser.ranges}))
    for place, entry in saved["state"].items():
        if foreign := sorted(set(entry) - set(known)):
            raise ConfigError(
                f"parameter {place} has {foreign[0]} in the saved state, "
                f"expected the state of {type(optimiser).__name__}: {', '.join(known)}"
            )
