"""`ModelLayout`: where a model has its tensors and attributes, listed once instead of in every forward."""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import Any

from torch import Tensor, nn

from wattline.errors import NotFusible
from wattline.fusion.member_numbers import MARK
from wattline.fusion.module_state import (
    TORCH_ATTRIBUTES,
    Attributes,
    copy_mutable,
    flatten_weights,
    is_mutable,
    named_tensors,
)


class ModelLayout:
    """The tensors and attributes of *body* by place, valid until `refresh` returns another layout."""

    def __init__(self, body: nn.Module) -> None:
        self.body = body
        named = dict(body.named_modules())
        self.paths = list(named)
        self.modules = list(named.values())
        self.tensors = named_tensors(body)
        self.has_numbers = any(MARK in vars(m) for m in self.modules)
        self.recurrent = [m for m in self.modules if isinstance(m, nn.RNNBase)]
        names = {id(t): name for name, t in self.tensors.items()}
        tensor_dicts: list[tuple[nn.Module, Any]] = [
            (m, own) for m in self.modules for own in (m._parameters, m._buffers)
        ]
        self._slots = [
            (own, key, names[id(t)], t) for _, own in tensor_dicts for key, t in own.items() if t is not None
        ]
        self._absent = [(m, own, key) for m, own in tensor_dicts for key, t in own.items() if t is None]
        children: list[Any] = [m._modules for m in self.modules]
        dicts = [*(own for _, own in tensor_dicts), *children]
        self._empty = [own for own in dicts if not own]
        self._filled = [(own, list(own.values())) for own in dicts if own]
        self._tensor_dicts = [(m, own, dict(own)) for m, own in tensor_dicts]
        self._attributes = [vars(m) for m in self.modules]
        self._before: list[dict[str, Any]] = []
        self._mutable: list[tuple[int, str]] = []

    def refresh(self) -> ModelLayout:
        """Return this layout, or another one if the model has other modules, parameters or buffers."""
        is_current = not any(self._empty) and all(
            len(own) == len(old) and all(map(is_, own.values(), old)) for own, old in self._filled
        )
        return self if is_current else ModelLayout(self.body)

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Put other *tensors* in the places of those of the same name."""
        for own, key, name, _ in self._slots:
            if name in tensors:
                own[key] = tensors[name]
        flatten_weights(self.recurrent)

    def find_replaced(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that a forward has put in the places of *tensors*, by name."""
        replaced = {}
        for own, key, name, _ in self._slots:
            now = own.get(key)
            if now is not None and name in tensors and now is not tensors[name]:
                replaced[name] = now
        for module, own, old in self._tensor_dicts:
            if own.keys() - old.keys():
                raise _created(module, min(own.keys() - old.keys()))
        for module, own, key in self._absent:
            if own.get(key) is not None:
                raise _created(module, key)
        return replaced

    def reset(self) -> None:
        """Put the model's own tensors back into their places."""
        for _, own, old in self._tensor_dicts:
            if own.keys() != old.keys():
                own.clear()
            own.update(old)
        flatten_weights(self.recurrent)

    def note_attributes(self) -> None:
        """Remember the attributes of all modules, for `find_changed` and `copy_attributes`."""
        if len(self._before) == len(self._attributes) and all(
            len(now) == len(old) and all(map(is_, now.values(), old.values()))
            for now, old in zip(self._attributes, self._before, strict=True)
        ):
            return
        self._before = [dict(own) for own in self._attributes]
        self._mutable = [
            (at, name)
            for at, own in enumerate(self._before)
            for name, value in own.items()
            if name not in TORCH_ATTRIBUTES and is_mutable(value)
        ]

    def copy_mutable_attributes(self) -> dict[tuple[int, str], Any]:
        """Return copies of containers and generators among the noted attributes."""
        return {(at, name): copy_mutable(self._before[at][name]) for at, name in self._mutable}

    def list_attributes(self, copies: Mapping[tuple[int, str], Any]) -> Attributes:
        """Return the noted attributes of users' code, with *copies* in the place of containers."""
        return [
            (
                module,
                {
                    name: copies.get((at, name), value)
                    for name, value in own.items()
                    if name not in TORCH_ATTRIBUTES
                },
            )
            for at, (module, own) in enumerate(zip(self.modules, self._before, strict=True))
        ]

    def find_changed(self) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Return modules with attributes that may have changed since they were noted: path, now, before."""
        containers = {at for at, _ in self._mutable}
        return [
            (self.paths[at], now, old)
            for at, (now, old) in enumerate(zip(self._attributes, self._before, strict=True))
            if at in containers or len(now) != len(old) or not all(map(is_, now.values(), old.values()))
        ]


def _created(module: nn.Module, name: str) -> NotFusible:
    return NotFusible(f"{type(module).__name__}.{name} is created in the forward", "create it in __init__")
