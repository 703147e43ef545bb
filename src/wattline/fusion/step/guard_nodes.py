"""Values that a trace has read, remembered in a form that can be compared before each step."""

from __future__ import annotations

import os
import types
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from wattline.fusion.module_state import generator_state

Memo = set[tuple[int, int]]
Path = tuple[Any, ...]
SEQUENCES = (list, tuple, deque)


class GuardNode(ABC):
    """A value found in one place; *matches* compares it with the one that is there now."""

    @abstractmethod
    def matches(self, now: Any, memo: Memo) -> bool:
        """Return whether *now* leads to the same trace."""

    def find_changed(self, now: Any, memo: Memo) -> Path | None:
        """Return the path to the first value that differs; None if all match."""
        return None if self.matches(now, memo) else ()


@dataclass
class Constant(GuardNode):
    """A value that a trace contains."""

    value: Any

    def matches(self, now: Any, memo: Memo) -> bool:
        """Return whether it is the same value of the same type."""
        value = self.value
        if now is value:
            return True
        if type(now) is not type(value):
            return False
        if isinstance(value, float) and (value == 0.0 or value != value):
            return repr(now) == repr(value)  # 0.0 and -0.0 differ, nan equals itself
        return bool(now == value)


@dataclass
class Same(GuardNode):
    """An object that is compared by identity: a function, a class, a module of Python."""

    value: Any

    def matches(self, now: Any, memo: Memo) -> bool:
        """Return whether it is the same object."""
        return now is self.value or (isinstance(now, types.MethodType) and bool(now == self.value))


@dataclass
class AnyNumber(GuardNode):
    """A number that is an input of the trace."""

    kind: type

    def matches(self, now: Any, memo: Memo) -> bool:
        """Return whether there is a number of the same type."""
        return type(now) is self.kind


@dataclass
class Opaque(GuardNode):
    """An object with values of no use to a trace, such as a lock."""

    kind: type

    def matches(self, now: Any, memo: Memo) -> bool:
        """Return whether it is of the same type."""
        return type(now) is self.kind


@dataclass
class TensorInput(GuardNode):
    """A tensor, which is an input of the trace; its values do not matter."""

    tensor: Tensor

    def matches(self, now: Any, memo: Memo) -> bool:
        """Return whether a tensor of the same form is there."""
        was = self.tensor
        return now is was or (
            isinstance(now, Tensor)
            and type(now) is type(was)
            and (now.shape, now.dtype, now.device, now.requires_grad)
            == (was.shape, was.dtype, was.device, was.requires_grad)
        )


class ParameterInput(TensorInput):
    """A parameter of an array, which stands for one input of the trace; another one is another input."""

    def matches(self, now: Any, memo: Memo) -> bool:
        """Return whether it is the same parameter, in the same form."""
        return now is self.tensor


class ArrayCopy(GuardNode):
    """A small NumPy array, compared by its values."""

    def __init__(self, array: Any) -> None:
        self.array = array.copy()

    def matches(self, now: Any, memo: Memo) -> bool:
        """Return whether it has the same type, shape and values."""
        was = self.array
        return (
            isinstance(now, np.ndarray)
            and now.dtype == was.dtype
            and now.shape == was.shape
            and now.tobytes() == was.tobytes()
        )


class Generator(GuardNode):
    """A random number generator; a step that draws from it cannot be traced."""

    def __init__(self, generator: Any) -> None:
        self.state = repr(generator_state(generator))

    def matches(self, now: Any, memo: Memo) -> bool:
        """Return True: its state is compared by `Guards.find_effect`."""
        return True


class Branch(GuardNode):
    """An object or a container with values of its own."""

    def __init__(self, value: Any, read: Callable[[Any, Any], Any]) -> None:
        self.kind = type(value)
        self.read = read
        self.size = len(value) if isinstance(value, (*SEQUENCES, dict, set, frozenset)) else -1
        self.children: dict[Any, GuardNode] = {}
        self._entries: list[tuple[Any, Any, GuardNode]] = []

    def matches(self, now: Any, memo: Memo) -> bool:
        """Return whether it has the same type and equal values."""
        return self.find_changed(now, memo) is None

    def find_changed(self, now: Any, memo: Memo) -> Path | None:
        """Return the path to the first value that differs; None if all match."""
        if type(now) is not self.kind or (self.size >= 0 and len(now) != self.size):
            return ()
        seen = (id(self), id(now))
        if seen in memo:
            return None
        memo.add(seen)
        if len(self._entries) != len(self.children):
            self._entries = [(key, _find_leaf(child), child) for key, child in self.children.items()]
        read = self.read
        for key, leaf, child in self._entries:
            value = read(now, key)
            if value is leaf:
                continue
            rest = child.find_changed(value, memo)
            if rest is not None:
                return (key, *rest)
        return None


_NO_LEAF = object()


def _find_leaf(node: GuardNode) -> Any:
    """Return the object that *node* matches without a further look, or a marker if there is none."""
    if isinstance(node, Constant | Same):
        return node.value
    return node.tensor if isinstance(node, TensorInput) else _NO_LEAF


class SetCopy(GuardNode):
    """A set of hashable values."""

    def __init__(self, value: set[Any]) -> None:
        self.value = set(value)

    def matches(self, now: Any, memo: Memo) -> bool:
        """Return whether it has the same elements."""
        return isinstance(now, set) and now == self.value


class Environment(GuardNode):
    """The environment variables."""

    def __init__(self) -> None:
        self.value = dict(os.environ)

    def matches(self, now: Any, memo: Memo) -> bool:
        """Return whether all variables have the same values."""
        return dict(os.environ) == self.value
