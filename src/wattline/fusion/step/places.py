"""Places of Python values: the variable that they are reached from, and the way from there."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from wattline.fusion.step.executed_code import ExecutedCode, global_names, is_recorded

MISSING = object()
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Reader = Callable[[Any, Any], Any]


class NotGuardable(Exception):  # caught in tracer.py
    """A step reads something that cannot be compared before the next step; the message names it."""


@dataclass(frozen=True)
class Part:
    """Key of a parameter, buffer or submodule of a module."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class OwnAttributes:
    """Key of the attributes of a container that has some besides its items."""


@dataclass(frozen=True)
class Root:
    """A variable from which values are reached; *key* distinguishes variables of the same name."""

    name: str
    read: Callable[[], Any] = field(compare=False)
    write: Callable[[Any], None] | None = field(default=None, compare=False)
    key: Hashable = None


@dataclass(frozen=True)
class Place:
    """The way from a root to one value: keys, and the functions that read them."""

    root: Root
    path: tuple[Any, ...] = ()
    readers: tuple[Reader, ...] = field(default=(), compare=False)

    def child(self, key: Any, reader: Reader) -> Place:
        """Return the place of a part of this value."""
        return Place(self.root, (*self.path, key), (*self.readers, reader))

    def get(self) -> Any:
        """Return the present value."""
        value = self.root.read()
        for key, read in zip(self.path, self.readers, strict=True):
            value = read(value, key)
        return value

    def set(self, value: Any) -> None:
        """Replace the value; raise `NotGuardable` where that is impossible."""
        if not self.path:
            if self.root.write is None:
                raise NotGuardable(f"{self} cannot be replaced")
            self.root.write(value)
            return
        owner = Place(self.root, self.path[:-1], self.readers[:-1]).get()
        key, reader = self.path[-1], self.readers[-1]
        try:
            if reader in (read_item, read_item_or_itself):
                owner[key] = value
            elif type(getattr(owner, "__dict__", None)) is dict and key in vars(owner):
                vars(owner)[key] = value
            elif _owns_attribute(owner, key):
                setattr(owner, key, value)
            else:
                raise NotGuardable(f"{self} cannot be replaced")
        except (TypeError, AttributeError):
            raise NotGuardable(f"{self} cannot be replaced") from None

    def __str__(self) -> str:
        text = self.root.name
        for key, reader in zip(self.path, self.readers, strict=True):
            if not isinstance(key, OwnAttributes):
                text += f"[{key!r}]" if reader in (read_item, read_item_or_itself) else f".{key}"
        return text


def _owns_attribute(owner: Any, name: str) -> bool:
    """Return whether setting an attribute replaces it, instead of hiding one of a class."""
    if isinstance(owner, type | types.ModuleType):
        return name in vars(owner)
    return any(isinstance(vars(c).get(name), types.MemberDescriptorType) for c in type(owner).__mro__)


def read_attribute(value: Any, name: str) -> Any:
    """Return an attribute, or a marker if there is none."""
    own = getattr(value, "__dict__", None)
    if type(own) is dict and name in own:
        return own[name]
    return getattr(value, name, MISSING)


def read_item(value: Any, key: Any) -> Any:
    """Return an item of a container, or a marker if there is none."""
    try:
        return value[key]
    except (KeyError, IndexError):
        return MISSING


def read_item_or_itself(value: Any, key: Any) -> Any:
    """Return an item of a container that also has attributes."""
    return value if isinstance(key, OwnAttributes) else read_item(value, key)


def read_part(module: Any, key: Any) -> Any:
    """Return an attribute, a parameter, a buffer, a submodule or the keys of the hooks of a module."""
    if isinstance(key, Part):
        for parts in (module._modules, module._parameters, module._buffers):
            if key.name in parts:
                return parts[key.name]
        return MISSING
    return tuple(getattr(module, key)) if key in HOOKS else read_attribute(module, key)


def is_user_module(name: str) -> bool:
    """Return whether code of this module may be the user's: not of PyTorch, NumPy, Python or Wattline."""
    module = sys.modules.get(name)
    if module is None:
        return True
    file = getattr(module, "__file__", None)
    return name == "__main__" if file is None else is_recorded(file)


def find_global_roots(executed: ExecutedCode) -> Iterator[Root]:
    """Yield the global variables that code has read."""
    seen: set[tuple[int, str]] = set()
    for code, variables in executed.codes.items():
        for name in global_names(code):
            if (id(variables), name) in seen:
                continue
            seen.add((id(variables), name))
            if name in variables:
                yield Root(
                    name,
                    functools.partial(variables.get, name, MISSING),
                    functools.partial(variables.__setitem__, name),
                    ("global", id(variables)),
                )
            elif name in sys.modules and is_user_module(name):
                yield Root(name, functools.partial(sys.modules.get, name))


def find_function_roots(function: types.FunctionType) -> Iterator[Root]:
    """Yield the closure and the default arguments of a function."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if _has_contents(cell):
            write = functools.partial(setattr, cell, "cell_contents")
            yield Root(name, functools.partial(_read_cell, cell), write, ("cell", id(cell)))
    if function.__defaults__ or function.__kwdefaults__:
        name = f"the default arguments of {function.__name__}"
        yield Root(name, functools.partial(_read_defaults, function), None, ("defaults", id(function)))


def _has_contents(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _read_cell(cell: Any) -> Any:
    return cell.cell_contents if _has_contents(cell) else MISSING


def _read_defaults(function: Any) -> Any:
    return function.__defaults__, function.__kwdefaults__
