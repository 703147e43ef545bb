"""Guards: the Python values that a traced step has read, compared with the present ones before each step.

A trace contains Python values as constants. The code that ran tells which global variables, closures and
default arguments it may have read, and by which names it reads attributes; everything reachable from there is
remembered. After a change of these values the step is traced anew.
"""

from __future__ import annotations

import argparse
import datetime
import enum
import fractions
import functools
import math
import os
import pathlib
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wattline.fusion.module_state import TORCH_ATTRIBUTES, generator_state
from wattline.fusion.step.executed_code import ExecutedCode
from wattline.fusion.step.guard_nodes import (
    SEQUENCES,
    AnyNumber,
    ArrayCopy,
    Branch,
    Constant,
    Environment,
    Generator,
    GuardNode,
    Memo,
    Opaque,
    ParameterInput,
    Same,
    SetCopy,
    TensorInput,
)
from wattline.fusion.step.places import (
    HOOKS,
    NotGuardable,
    OwnAttributes,
    Part,
    Place,
    Reader,
    Root,
    find_function_roots,
    find_global_roots,
    is_user_module,
    read_attribute,
    read_item,
    read_item_or_itself,
    read_part,
)

MAX_VALUES = 20_000  # beyond which comparing them before each step would cost too much
MAX_ARRAY_BYTES = 65_536  # of a NumPy array that is compared before each step

_CONSTANTS = (
    *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range, enum.Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, np.generic, np.dtype),
    *(pathlib.PurePath, datetime.date, datetime.time, datetime.timedelta, fractions.Fraction, frozenset),
)
_NAMESPACES = (
    *(types.SimpleNamespace, argparse.Namespace),
    *(torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler),
)
_FUNCTIONS = (types.BuiltinFunctionType, np.ufunc, torch.jit.ScriptFunction)
_DESCRIPTORS = (
    *(types.FunctionType, property, classmethod, staticmethod, functools.cached_property),
    *(types.MemberDescriptorType, types.GetSetDescriptorType),
)


class Guards:
    """All values that a step may have read, by the variables that they were reached from."""

    def __init__(
        self,
        executed: ExecutedCode,
        roots: Iterable[Root],
        known: Iterable[Tensor],
        inputs: Iterable[Place] = (),
    ) -> None:
        """Visit everything that *executed* code may read, from its variables and from *roots*.

        *known* tensors are inputs already, and so are the numbers at the places *inputs*.
        """
        self._executed = executed
        self._names = executed.names
        self._inputs = frozenset(inputs)
        self._known = {id(t) for t in known}
        self._count = 0
        self._nodes: dict[int, tuple[Any, GuardNode]] = {}
        self._waiting = [*roots, *find_global_roots(executed)]
        self._seen: set[Any] = set()  # functions and cells
        self._found: set[types.CodeType] = set()
        self.tensors: dict[int, Place] = {}
        self.numbers: set[Place] = set()
        self.generators: list[tuple[Place, Any, Generator]] = []
        self.objects: list[tuple[Place, Any]] = []  # modules, optimisers and objects that are not looked into
        self.roots: list[tuple[Root, GuardNode]] = []
        self._visit_roots()
        for function in executed.find_functions(self._found):  # those that no variable leads to
            self._visit_function(function)
        self._visit_roots()
        self._nodes.clear()

    def find_changed(self) -> Place | None:
        """Return the place of a value that differs from the one that was found; None if all match."""
        memo: Memo = set()
        for root, node in self.roots:
            path = node.find_changed(root.read(), memo)
            if path is not None:
                return _find_place(root, node, path)
        return None

    def find_effect(self, tensors: dict[Place, Tensor]) -> str | None:
        """Return what a step has changed since the guards were built; *tensors* are those found then."""
        if (drawing := self.find_drawing()) is not None:
            return f"draws random numbers from {drawing}"
        changed = self.find_changed()
        if changed is not None:
            return f"changes {changed}"
        for place, tensor in self.current_tensors().items():
            if tensors.get(place) is not tensor:
                return f"changes {place}"
        return None

    def find_drawing(self) -> Place | None:
        """Return a random number generator from which was drawn since the guards were built, or None."""
        for place, generator, node in self.generators:
            if repr(generator_state(generator)) != node.state:
                return place
        return None

    def current_tensors(self) -> dict[Place, Tensor]:
        """Return the tensors that are reached now, by place."""
        return {place: place.get() for place in self.tensors.values()}

    def _visit_roots(self) -> None:
        while self._waiting:
            root = self._waiting.pop(0)
            if root.key is not None and (root.key, root.name) in self._seen:
                continue
            self._seen.add((root.key, root.name))
            self.roots.append((root, self._visit(root.read(), Place(root))))

    def _visit(self, value: Any, place: Place) -> GuardNode:
        self._count += 1
        if self._count > MAX_VALUES:
            raise NotGuardable(f"{place.root.name} leads to more than {MAX_VALUES} values")
        if isinstance(value, Tensor):
            if id(value) not in self._known:
                self.tensors.setdefault(id(value), place)
            elif isinstance(value, nn.Parameter):
                return ParameterInput(value)
            return TensorInput(value)
        if isinstance(value, _CONSTANTS):
            return self._visit_constant(value, place)
        if id(value) in self._nodes:
            return self._nodes[id(value)][1]
        if isinstance(value, np.ndarray):
            if value.nbytes > MAX_ARRAY_BYTES or value.dtype == object:
                raise NotGuardable(f"{place} is a NumPy array of {value.nbytes} bytes")
            return ArrayCopy(value)
        if generator_state(value) is not None:
            node = Generator(value)
            self.generators.append((place, value, node))
            return node
        if isinstance(value, types.FunctionType):
            self._visit_function(value)
            return Same(value)
        if isinstance(value, _FUNCTIONS):
            return Same(value)
        if isinstance(value, Iterator):
            raise NotGuardable(f"{place} is an iterator")
        if isinstance(value, set):
            return SetCopy(value)
        return self._visit_object(value, place)

    def _visit_constant(self, value: Any, place: Place) -> GuardNode:
        if type(value) in (int, float) and math.isfinite(value):
            self.numbers.add(place)
            if place in self._inputs:
                return AnyNumber(type(value))
        return Constant(value)

    def _visit_function(self, function: types.FunctionType) -> None:
        """Visit the closure and default arguments of a function if it has run."""
        if function in self._seen:
            return
        self._seen.add(function)
        if isinstance(wrapped := getattr(function, "__wrapped__", None), types.FunctionType):
            self._visit_function(wrapped)
        if function.__code__ in self._executed.codes:
            self._found.add(function.__code__)
            self._waiting.extend(find_function_roots(function))

    def _visit_object(self, value: Any, place: Place) -> GuardNode:
        if isinstance(value, nn.Module | torch.optim.Optimizer):
            self.objects.append((place, value))
        if isinstance(value, nn.Module):
            return self._visit_module(value, place)
        if isinstance(value, type):
            return self._visit_class(value, place)
        if isinstance(value, types.ModuleType):
            return self._visit_python_module(value, place)
        reader: Reader = read_attribute
        if isinstance(value, types.MethodType):
            keys: Iterable[Any] = ("__self__", "__func__")
        elif isinstance(value, functools.partial):
            keys = ("func", "args", "keywords")
        elif isinstance(value, dict | types.MappingProxyType):
            reader, keys = read_item, list(value)
        elif isinstance(value, SEQUENCES):
            reader, keys = read_item, range(len(value))
        elif not (is_user_module(type(value).__module__) or isinstance(value, _NAMESPACES)):
            self.objects.append((place, value))
            return Opaque(type(value))
        else:
            keys = self._select_attributes(value)
        own = (
            self._select_attributes(value)
            if reader is read_item and type(value).__module__ != "builtins"
            else []
        )
        branch = Branch(value, read_item_or_itself if own else reader)
        self._nodes[id(value)] = (value, branch)
        if own:
            attributes = branch.children[OwnAttributes()] = Branch(value, read_attribute)
            here = place.child(OwnAttributes(), read_item_or_itself)
            self._add_children(attributes, value, here, own)
        self._add_children(branch, value, place, keys)
        return branch

    def _add_children(self, branch: Branch, value: Any, place: Place, keys: Iterable[Any]) -> None:
        for key in keys:
            try:
                child = branch.read(value, key)
            except Exception:  # a property or a proxy may raise anything
                continue
            branch.children[key] = self._visit(child, place.child(key, branch.read))

    def _visit_module(self, module: nn.Module, place: Place) -> GuardNode:
        branch = Branch(module, read_part)
        self._nodes[id(module)] = (module, branch)
        names = [n for n in self._select_attributes(module) if n not in TORCH_ATTRIBUTES]
        parts = [Part(name) for own in (module._parameters, module._buffers, module._modules) for name in own]
        self._add_children(branch, module, place, [*names, "training", *HOOKS, *parts])
        return branch

    def _visit_class(self, value: type, place: Place) -> GuardNode:
        if not is_user_module(value.__module__):
            return Same(value)
        branch = Branch(value, read_attribute)
        self._nodes[id(value)] = (value, branch)
        branch.children["__name__"] = Constant(value.__name__)
        self._add_children(branch, value, place, self._select_class_attributes(value))
        return branch

    def _visit_python_module(self, module: types.ModuleType, place: Place) -> GuardNode:
        branch = Branch(module, read_attribute)
        if module is os:
            branch.children["environ"] = Environment()
            return branch
        if not is_user_module(module.__name__) or self._names is None:
            return Same(module)
        self._nodes[id(module)] = (module, branch)
        keys = [name for name in vars(module) if name in self._names and not name.startswith("__")]
        self._add_children(branch, module, place, keys)
        return branch

    def _select_attributes(self, value: Any) -> list[str]:
        own = list(getattr(value, "__dict__", ()))
        for cls in type(value).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            own += [slots] if isinstance(slots, str) else list(slots)
        own = [name for name in own if name not in ("__dict__", "__weakref__")]
        if is_user_module(type(value).__module__):
            own += [n for n in self._select_class_attributes(type(value)) if n not in own]
        return own if self._names is None else [name for name in own if name in self._names]

    def _select_class_attributes(self, cls: type) -> list[str]:
        names: set[str] = set()
        for base in cls.__mro__:
            for name, value in vars(base).items():
                self._visit_descriptor(value)
                if is_user_module(base.__module__) and not name.startswith("__"):
                    names |= set() if isinstance(value, _DESCRIPTORS) else {name}
        return sorted(names if self._names is None else names & self._names)

    def _visit_descriptor(self, value: Any) -> None:
        """Visit the functions of a class."""
        if isinstance(value, property):
            functions = [value.fget, value.fset]
        else:
            functions = [getattr(value, "__func__", getattr(value, "func", value))]
        for function in functions:
            if isinstance(function, types.FunctionType):
                self._visit_function(function)


def _find_place(root: Root, node: GuardNode, path: tuple[Any, ...]) -> Place:
    """Return the place at the end of a path of keys."""
    place = Place(root)
    for key in path:
        assert isinstance(node, Branch)
        place, node = place.child(key, node.read), node.children[key]
    return place
