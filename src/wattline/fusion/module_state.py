"""Tensors and attributes of modules: list, replace, copy and restore them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from wattline.errors import NotFusible
from wattline.fusion.torch_internals import register_dataclass, tree_flatten

TORCH_ATTRIBUTES = frozenset(vars(nn.Module())) | {"_flat_weights", "_flat_weight_refs", "forward"}
"""Attributes that PyTorch itself sets on modules."""

Attributes = list[tuple[nn.Module, dict[str, Any]]]


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; tied ones only under their first name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def call_with_tensors(module: nn.Module, tensors: dict[str, Tensor], args: Any, kwargs: Any) -> Any:
    """Call *module* with other *tensors*; they are updated with those that the forward replaces.

    Unlike `torch.func.functional_call`, modules registered under two names are supported.
    """
    with replace_tensors(module, tensors):
        return module(*args, **kwargs)


replaced_modules: list[nn.Module] = []
"""Modules that run with other tensors at present, the outermost first."""


@contextmanager
def replace_tensors(module: nn.Module, tensors: dict[str, Tensor]) -> Iterator[None]:
    """Replace tensors of *module* by name (see `named_tensors`) inside a `with` block.

    *tensors* is updated with those that the forward puts in their place.
    """
    names = {id(t): name for name, t in named_tensors(module).items() if name in tensors}
    slots: list[tuple[nn.Module, Any, dict[str, Any]]] = [
        (m, mapping, dict(mapping)) for m in module.modules() for mapping in (m._parameters, m._buffers)
    ]
    replaced_modules.append(module)
    try:
        for _, mapping, old in slots:
            mapping.update(
                (name, tensors[names[id(t)]]) for name, t in old.items() if t is not None and id(t) in names
            )
        flatten_weights(module.modules())
        yield
        for m, mapping, old in slots:
            for name, now in mapping.items():
                was = old.get(name)
                if was is None and now is not None:
                    raise NotFusible(
                        f"{type(m).__name__}.{name} is created in the forward", "create it in __init__"
                    )
                if now is not None and id(was) in names:
                    tensors[names[id(was)]] = now
    finally:
        replaced_modules.pop()
        for _, mapping, old in slots:
            mapping.clear()
            mapping.update(old)
        flatten_weights(module.modules())


def flatten_weights(modules: Iterable[nn.Module]) -> None:
    """Refresh the list of weights that recurrent layers among *modules* keep."""
    for m in modules:
        if isinstance(m, nn.RNNBase):
            m._flat_weights = [getattr(m, name, None) for name in m._flat_weights_names]


def plain_settings(module: nn.Module) -> list[dict[str, Any]]:
    """Return the plain values among the attributes of each submodule; a step is compiled for them."""
    return [{k: v for k, v in vars(m).items() if _is_plain(v)} for m in module.modules()]


def _is_plain(value: Any) -> bool:
    items = value if isinstance(value, tuple) else (value,)
    return all(item is None or isinstance(item, bool | int | float | str) for item in items)


def copy_attributes(module: nn.Module) -> Attributes:
    """Return the plain attributes of all submodules, with copies of containers that forwards may write to."""
    return [
        (m, {k: copy_mutable(v) for k, v in vars(m).items() if k not in TORCH_ATTRIBUTES})
        for m in module.modules()
    ]


def restore_attributes(attributes: Attributes) -> None:
    """Set the attributes of modules back to *attributes* and delete all others."""
    for module, old in attributes:
        now = vars(module)
        for name in [n for n in now if n not in TORCH_ATTRIBUTES and n not in old]:
            del now[name]
        now.update((name, copy_mutable(value)) for name, value in old.items())


def is_mutable(value: Any) -> bool:
    """Return whether *value* is a container or a random number generator, which forwards may change."""
    return type(value) in (list, dict, set) or generator_state(value) is not None


def copy_mutable(value: Any) -> Any:
    """Return a copy of a container or a random number generator, or *value* itself."""
    if type(value) in (list, dict, set):
        return copy.copy(value)
    return value if generator_state(value) is None else copy.deepcopy(value)


def generator_state(value: Any) -> Any:
    """Return the state of a random number generator of Python or NumPy; None for any other value."""
    if type(value).__module__ == "random":
        return value.getstate() if hasattr(value, "getstate") else None
    if type(value).__module__.startswith("numpy.random"):
        return value.bit_generator.state if hasattr(value, "bit_generator") else value.get_state()
    return None


def flatten_tree(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves and the structure of *tree*; raise `TypeError` where tensors cannot be reached."""
    while True:
        leaves, spec = tree_flatten(tree)
        closed = [leaf for leaf in leaves if not isinstance(leaf, Tensor) and _has_tensors(leaf)]
        if not closed:
            return leaves, spec
        kind = type(closed[0])
        if not dataclasses.is_dataclass(kind) or not all(f.init for f in dataclasses.fields(kind)):
            raise TypeError(
                f"tensors are inside a {kind.__name__}, expected tuples, lists, dicts or dataclasses"
            )
        register_dataclass(kind)  # type: ignore[no-untyped-call, unused-ignore]


def _has_tensors(leaf: Any) -> bool:
    if isinstance(leaf, nn.Module | type):
        return False
    inside = list(getattr(leaf, "__dict__", {}).values())
    if dataclasses.is_dataclass(leaf):  # may have slots, and then no __dict__
        inside += [getattr(leaf, f.name, None) for f in dataclasses.fields(leaf)]
    return any(isinstance(t, Tensor) for t in tree_flatten(inside)[0])
