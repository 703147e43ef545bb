"""Record which Python code a step runs, and what it calls that no guard can cover."""

from __future__ import annotations

import dis
import gc
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np
import torch

_DYNAMIC = frozenset(
    ("getattr", "vars", "__dict__", "asdict", "astuple", "attrgetter", "eval", "exec", "globals", "locals")
)
_ENTROPY = frozenset(
    ("default_rng", "SystemRandom", "urandom", "uuid1", "uuid4", "token_bytes", "token_hex", "randbits")
)
_CLOCKS = frozenset(("time", "datetime"))  # modules with C functions that read a clock
_FILES = frozenset(("open", "input", "read", "readline", "urandom", "print", "breakpoint"))
_STORES = frozenset(
    ("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR", "DELETE_SUBSCR")
)
_MUTATORS = frozenset(
    (
        *(
            "append",
            "extend",
            "insert",
            "pop",
            "popitem",
            "popleft",
            "appendleft",
            "remove",
            "clear",
            "update",
        ),
        *(
            "setdefault",
            "add",
            "discard",
            "setattr",
            "write",
            "sort",
            "reverse",
            "rotate",
            "__next__",
            "next",
        ),
        *("send", "put", "get_nowait", "increment", "__setattr__", "__setitem__", "register_buffer"),
    )
)


@dataclass
class ExecutedCode:
    """Code of the user and of libraries that has run, with its global variables."""

    codes: dict[CodeType, dict[str, Any]] = field(default_factory=dict)
    impure: set[str] = field(default_factory=set)  # calls with results that depend on more than values

    @property
    def names(self) -> frozenset[str] | None:
        """Names of attributes that the code may read; None: any."""
        found: set[str] = set()
        for code in self.codes:
            if _DYNAMIC.intersection(code.co_names):
                return None
            found.update(code.co_names)
            found.update(text for text in code.co_consts if isinstance(text, str) and text.isidentifier())
        return frozenset(found)

    @property
    def may_have_effects(self) -> bool:
        """True if the code may write to something that outlives the step."""
        return any(
            _MUTATORS.intersection(code.co_names)
            or any(i.opname in _STORES for i in dis.get_instructions(code))
            for code in self.codes
        )

    @property
    def may_write_tensors(self) -> bool:
        """True if the code may call methods of tensors that write to them, such as `add_`."""
        names = (name for code in self.codes for name in code.co_names)
        return any(name.endswith("_") and not name.endswith("__") for name in names)

    def note_call(self, function: Any) -> None:
        """Note a call of a C function if its result depends on a clock, a file or the system."""
        name, module = getattr(function, "__name__", ""), getattr(function, "__module__", None)
        owner = getattr(function, "__self__", None)
        if module in _CLOCKS or (isinstance(owner, type) and owner.__module__ in _CLOCKS):
            self.impure.add(f"{module or owner.__module__}.{name}()")
        elif name in _FILES and module in ("io", "posix", "builtins", "_io", None):
            self.impure.add(f"{name}()")

    def find_functions(self, found: Set[CodeType]) -> list[FunctionType]:
        """Return functions with this code, except for code already *found* or created by a call.

        They hold closures and default arguments. All objects of the process are searched: that takes a while.
        """
        local = {inner for code in self.codes for inner in code.co_consts if isinstance(inner, CodeType)}
        missing = self.codes.keys() - found - local
        if not missing:
            return []
        return [
            f for f in gc.get_referrers(*missing) if isinstance(f, FunctionType) and f.__code__ in missing
        ]

    def list_impure(self) -> list[str]:
        """Return calls and names that make a result depend on a clock, a file or the system's randomness."""
        entropy = {name for code in self.codes for name in code.co_names if name in _ENTROPY}
        return sorted(self.impure | entropy)


@cache
def global_names(code: CodeType) -> frozenset[str]:
    """Return the names of global variables and modules that *code* reads."""
    loads = ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME")
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opname in loads)


@contextmanager
def record_code(executed: ExecutedCode) -> Iterator[None]:
    """Add the code that runs inside the `with` block to *executed*."""

    known: dict[CodeType, bool] = {}

    def on_event(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code not in known:
                known[code] = code.co_name != "<module>" and _is_frame_recorded(frame)
                if known[code]:
                    executed.codes.setdefault(code, frame.f_globals)
        elif event == "c_call" and known.get(frame.f_code):
            executed.note_call(arg)

    before = sys.getprofile()
    sys.setprofile(on_event)
    _recorders.append(on_event)
    try:
        yield
    finally:
        _recorders.pop()
        sys.setprofile(None)
        if callable(before):
            sys.setprofile(before)
        elif before is not None:  # cProfile, which cannot be set as a function
            before.enable()


def call_unrecorded(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return `func(*args, **kwargs)` without recording: operators run much code, but none of the user's."""
    if not _recorders:
        return func(*args, **kwargs)
    sys.setprofile(None)
    try:
        return func(*args, **kwargs)
    finally:
        sys.setprofile(_recorders[-1])


def is_recording() -> bool:
    """Return whether the code that runs now is recorded."""
    return bool(_recorders)


_recorders: list[Any] = []


def _is_frame_recorded(frame: FrameType) -> bool:
    filename, variables = frame.f_code.co_filename, frame.f_globals
    if not filename.startswith("<"):
        return is_recorded(filename)
    # Generated code belongs to the module that it runs in; named tuples and PyTorch's tracer have none.
    if str(variables.get("__name__")).startswith("namedtuple_") or variables.keys() <= {"fn", "__builtins__"}:
        return False
    return is_recorded(variables.get("__file__") or filename)


@cache
def is_recorded(filename: str) -> bool:
    """Return whether code of this file may read values that change: not PyTorch, NumPy, Python, Wattline."""
    path = os.path.abspath(filename)
    if path.startswith(NN_MODULES):
        return not path.endswith("module.py")  # calls of modules and their hooks, which guards compare
    if path.startswith(_SITE):
        return not path.startswith(_EXCLUDED)
    return not path.startswith((*_EXCLUDED, _STDLIB)) and not filename.startswith("<frozen")


def user_stacklevel() -> int:
    """Return the `stacklevel` with which a warning names the line of the user that called Wattline."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_FUSION):
        frame, level = frame.f_back, level + 1
    return level


def _package_folder(module: Any) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(module.__file__)), "")


_TORCH = _package_folder(torch)
NN_MODULES = os.path.join(_TORCH, "nn", "modules", "")
_FUSION = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_STDLIB = os.path.join(sysconfig.get_paths()["stdlib"], "")
_SITE = tuple({os.path.join(sysconfig.get_paths()[name], "") for name in ("purelib", "platlib")})
_TOOLS = ("typing_extensions", "sympy", "mpmath", "networkx", "_distutils_hack", "setuptools", "hypothesis")
_EXCLUDED = (
    *(_TORCH, _package_folder(np), _FUSION),
    *(os.path.join(site, tool) for site in _SITE for tool in (*_TOOLS, "pytest", "_pytest", "pluggy")),
)
