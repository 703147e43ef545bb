"""Fingerprint of everything that a compiled step depends on, equal in another process with equal values."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import os
import platform
import sys
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wattline.fusion.step.executed_code import ExecutedCode
from wattline.fusion.step.guard_nodes import (
    AnyNumber,
    ArrayCopy,
    Branch,
    Constant,
    Environment,
    Generator,
    GuardNode,
    Opaque,
    Same,
    SetCopy,
    TensorInput,
)
from wattline.fusion.step.guards import Guards
from wattline.fusion.torch_internals import TreeSpec, read_compiler_settings

_FORMAT = 1  # of the files in the cache
_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range, enum.Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, TreeSpec),
    *(np.generic, np.dtype, os.PathLike),
)


class NotPortable(Exception):  # caught in tracer.py
    """A value has no description that is the same in another process."""


def compute_fingerprint(
    guards: Guards, executed: ExecutedCode, inputs: Sequence[str], flat: Sequence[Tensor], form: Any
) -> str:
    """Return the fingerprint of a step; raise `NotPortable` if it depends on values without a description.

    *guards* are its values, *executed* its code, *inputs* the places of numbers that are inputs, *flat* its
    tensors and *form* all else that a trace depends on.
    """
    index = {id(t): at for at, t in enumerate(flat)}
    storages: dict[int, int] = {}
    forms = [
        (*_tensor_form(t), storages.setdefault(t.untyped_storage().data_ptr(), at))
        for at, t in enumerate(flat)
    ]
    nodes = _NodeDigests(index)
    roots = sorted(guards.roots, key=lambda pair: pair[0].name)
    parts = (
        *(_FORMAT, read_machine(), read_sources(), read_compiler_settings()),
        sorted(_describe_code(code) for code in executed.codes),
        [(root.name, nodes.digest(node)) for root, node in roots],
        sorted((str(place), _tensor_form(place.get())) for place in guards.tensors.values()),
        *(list(inputs), forms, describe(form)),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def describe(value: Any) -> str:
    """Return a text that is the same in every process; raise `NotPortable` if there is none."""
    if isinstance(value, _PLAIN):
        return f"{_name(type(value))} {value!r}"
    if isinstance(value, frozenset | set):
        return f"{_name(type(value))} {sorted(map(describe, value))}"
    if isinstance(value, list | tuple):
        return f"{_name(type(value))} {[describe(item) for item in value]}"
    if isinstance(value, Mapping):
        return f"{_name(type(value))} {[(describe(k), describe(v)) for k, v in value.items()]}"
    if isinstance(value, types.FunctionType):
        return f"{_name(value)} {_describe_code(value.__code__)}"
    if isinstance(value, functools.partial):
        return f"partial {describe([value.func, value.args, value.keywords])}"
    if isinstance(value, type | types.ModuleType | np.ufunc):
        return _name(value)
    if isinstance(value, types.BuiltinFunctionType) and isinstance(
        value.__self__, types.ModuleType | type(None)
    ):
        return _name(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{_name(type(value))} {[describe(getattr(value, f.name)) for f in dataclasses.fields(value)]}"
    raise NotPortable(type(value).__name__)


class _NodeDigests:
    """Digests of guard nodes; *index* are the positions of tensors that are inputs, by identity."""

    def __init__(self, index: Mapping[int, int]) -> None:
        self._index = index
        self._known: dict[int, str] = {}
        self._path: list[int] = []

    def digest(self, node: GuardNode) -> str:
        """Return a digest of the values that *node* compares."""
        if id(node) in self._known:
            return self._known[id(node)]
        if id(node) in self._path:
            return f"up {len(self._path) - self._path.index(id(node))}"
        self._path.append(id(node))
        text = hashlib.sha256(self._describe(node).encode()).hexdigest()
        self._path.pop()
        self._known[id(node)] = text
        return text

    def _describe(self, node: GuardNode) -> str:
        if isinstance(node, Constant | Same):
            return describe(node.value)
        if isinstance(node, AnyNumber | Opaque):
            return f"{type(node).__name__} {_name(node.kind)}"
        if isinstance(node, TensorInput):
            return f"tensor {_tensor_form(node.tensor)} {self._index.get(id(node.tensor))}"
        if isinstance(node, ArrayCopy):
            return f"array {node.array.dtype} {node.array.shape} {node.array.tobytes().hex()}"
        if isinstance(node, Generator):
            return "generator"
        if isinstance(node, SetCopy | Environment):
            return describe(node.value)
        if isinstance(node, Branch):
            own = [(describe(key), self.digest(child)) for key, child in node.children.items()]
            return f"{_name(node.kind)} {node.size} {own}"
        raise NotPortable(type(node).__name__)


def _tensor_form(tensor: Tensor) -> tuple[Any, ...]:
    return (tuple(tensor.shape), tensor.stride(), str(tensor.dtype), str(tensor.device), tensor.requires_grad)


def _name(value: Any) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if name is None:
        name = getattr(value, "__name__", None)
    if name is None:
        raise NotPortable(type(value).__name__)
    return f"{module}.{name}"


@cache
def _describe_code(code: types.CodeType) -> str:
    constants = [_describe_code(c) if isinstance(c, types.CodeType) else describe(c) for c in code.co_consts]
    parts = (
        *(code.co_qualname, code.co_code, code.co_names, code.co_varnames, code.co_freevars),
        *(code.co_cellvars, code.co_argcount, code.co_kwonlyargcount, code.co_flags, constants),
        code.co_exceptiontable,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@cache
def read_machine() -> tuple[str, ...]:
    """Return the versions and the processor that compiled code depends on."""
    flags = ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        pass
    gpus = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    return (
        *(sys.version, platform.machine(), str(torch.__version__), str(torch.version.git_version)),
        *(torch.backends.cpu.get_cpu_capability(), flags, *gpus),
    )


@cache
def read_sources() -> str:
    """Return a digest of the code of `wattline.fusion`, so that another version compiles anew."""
    folder = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
