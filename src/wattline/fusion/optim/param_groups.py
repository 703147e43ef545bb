"""Parameter groups of stacked parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from wattline.errors import ConfigError

Params = Any  # an iterable of stacked parameters or of parameter groups, or an object with `.parameters()`
Group = dict[str, Any]


def read_groups(params: Params) -> list[Group]:
    """Return the parameter groups that *params* stands for."""
    if isinstance(params, Tensor):
        raise ConfigError("got one tensor, expected an iterable of parameters")
    entries = list_params(params)
    if not entries:
        raise ConfigError("got no parameters to optimise")
    if not isinstance(entries[0], dict):
        entries = [{"params": entries}]
    return [read_group(group) for group in entries]


def read_group(group: Any) -> Group:
    """Return a copy of *group* with its parameters as a list."""
    if not isinstance(group, Mapping) or "params" not in group:
        content = f"the keys {', '.join(map(str, group))}" if isinstance(group, Mapping) else repr(group)
        raise ConfigError(
            f"a parameter group has {content}, expected a dict with the key params",
            'pass {"params": array.parameters(), "lr": 0.1}',
        )
    return {**group, "params": list_params(group["params"])}


def list_params(params: Params) -> list[Any]:
    """Return the parameters of a module, an iterable or one tensor as a list."""
    if isinstance(params, nn.Module) and not _has_array(params):
        raise ConfigError(
            f"got a {type(params).__name__}, an ordinary model, expected an array",
            "fuse the models first: array = fusion.fuse(models)",
        )
    if hasattr(params, "parameters"):
        params = params.parameters()
    if isinstance(params, Tensor):
        return [params]
    if not isinstance(params, Iterable):
        raise ConfigError(f"got {params!r}, expected an array, or an iterable of parameters")
    entries = list(params)
    if any(isinstance(entry, nn.Module) for entry in entries):
        raise ConfigError(
            f"got a list of {len(entries)} models, expected one array",
            "fuse the models first: array = fusion.fuse(models)",
        )
    return entries


def _has_array(module: nn.Module) -> bool:
    """Return whether the module is or contains an array, which cannot be imported here."""
    return any(type(part).__name__ == "FusedArray" for part in module.modules())


def trained_params(group: Group) -> list[Tensor]:
    """Return the parameters of a group that are not frozen."""
    return [param for param in group["params"] if param.requires_grad]


def count_members(params: Iterable[Any]) -> int:
    """Return the number of members for which the trained ones of *params* are stacked."""
    tensors = [param[1] if isinstance(param, tuple) else param for param in params]
    shapes = [list(tensor.shape) for tensor in tensors if isinstance(tensor, Tensor) and tensor.requires_grad]
    if not shapes:
        raise ConfigError("no parameter requires gradients")
    if any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        shape_list = ", ".join(map(str, shapes[:6])) + (", …" if len(shapes) > 6 else "")
        raise ConfigError(
            f"expected parameters stacked for the same number of members, got the shapes {shape_list}"
        )
    if any(isinstance(tensor, Tensor) and tensor.is_complex() for tensor in tensors):
        raise ConfigError("complex parameters are not supported")
    return shapes[0][0]
