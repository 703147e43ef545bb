"""What a module has: its tensors by name, its plain attributes, and the tensors in what goes in and out."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils._pytree import tree_flatten

from wattline.errors import NotFusible

FRAME = frozenset(vars(nn.Module())) | {"_flat_weights", "_flat_weight_refs", "forward"}
"""Attributes that PyTorch itself keeps in modules."""

Attributes = list[tuple[nn.Module, dict[str, Any]]]


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; of tied ones only the first name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def call_with(module: nn.Module, tensors: dict[str, Tensor], args: Any, kwargs: Any) -> Any:
    """`torch.func.functional_call`, also for modules with two names; *tensors* gets what was replaced."""
    with swapped(module, tensors):
        return module(*args, **kwargs)


@contextmanager
def swapped(module: nn.Module, tensors: dict[str, Tensor]) -> Iterator[None]:
    """The module has other *tensors*, by name (`state_of`); they get what the forward puts in their place."""
    names = {id(t): name for name, t in state_of(module).items() if name in tensors}
    slots: list[tuple[nn.Module, Any, dict[str, Any]]] = [
        (m, of, dict(of)) for m in module.modules() for of in (m._parameters, m._buffers)
    ]
    try:
        for _, of, old in slots:
            of.update(
                (name, tensors[names[id(t)]]) for name, t in old.items() if t is not None and id(t) in names
            )
        _flatten_weights(module)
        yield
        for m, of, old in slots:
            for name, now in of.items():
                was = old.get(name)
                if was is None and now is not None:
                    raise NotFusible(
                        f"{type(m).__name__}.{name} is made in the forward", "make it in __init__"
                    )
                if now is not None and id(was) in names:
                    tensors[names[id(was)]] = now
    finally:
        for _, of, old in slots:
            of.clear()
            of.update(old)
        _flatten_weights(module)


def _flatten_weights(module: nn.Module) -> None:
    """Recurrent layers keep a list of their weights."""
    for m in module.modules():
        if isinstance(m, nn.RNNBase):
            m._flat_weights = [getattr(m, name, None) for name in m._flat_weights_names]


def settings_of(module: nn.Module) -> list[dict[str, Any]]:
    """The plain values among the attributes of each module inside: what a step is compiled for."""
    return [{k: v for k, v in vars(m).items() if _is_plain(v)} for m in module.modules()]


def _is_plain(value: Any) -> bool:
    several = value if isinstance(value, tuple) else (value,)
    return all(one is None or isinstance(one, bool | int | float | str) for one in several)


def attributes_of(module: nn.Module) -> Attributes:
    """The plain attributes of all modules inside; lists and the like are copied: forwards write to them."""
    return [(m, {k: _apart(v) for k, v in vars(m).items() if k not in FRAME}) for m in module.modules()]


def put_attributes(attributes: Attributes) -> None:
    """Modules have these attributes again, and no others."""
    for module, old in attributes:
        now = vars(module)
        for name in [n for n in now if n not in FRAME and n not in old]:
            del now[name]
        now.update((name, _apart(value)) for name, value in old.items())


def _apart(value: Any) -> Any:
    if type(value) in (list, dict, set):
        return copy.copy(value)
    return value if state_of_chance(value) is None else copy.deepcopy(value)


def state_of_chance(value: Any) -> Any:
    """The state of a random number generator of Python or NumPy; None: it is not one."""
    if type(value).__module__ == "random":
        return value.getstate() if hasattr(value, "getstate") else None
    if type(value).__module__.startswith("numpy.random"):
        return value.bit_generator.state if hasattr(value, "bit_generator") else value.get_state()
    return None


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of *tree* and its shape; `TypeError` where tensors are in what cannot be looked into."""
    while True:
        leaves, spec = tree_flatten(tree)
        closed = [leaf for leaf in leaves if not isinstance(leaf, Tensor) and _has_tensors(leaf)]
        if not closed:
            return leaves, spec
        kind = type(closed[0])
        if not dataclasses.is_dataclass(kind) or not all(f.init for f in dataclasses.fields(kind)):
            raise TypeError(
                f"tensors are inside of a {kind.__name__}, expected tuples, lists, dicts or dataclasses"
            )
        _pytree.register_dataclass(kind)  # type: ignore[no-untyped-call, unused-ignore]


def _has_tensors(leaf: Any) -> bool:
    if isinstance(leaf, nn.Module | type):
        return False
    inside = list(getattr(leaf, "__dict__", {}).values())
    if dataclasses.is_dataclass(leaf):  # perhaps with slots
        inside += [getattr(leaf, f.name, None) for f in dataclasses.fields(leaf)]
    return any(isinstance(t, Tensor) for t in tree_flatten(inside)[0])
