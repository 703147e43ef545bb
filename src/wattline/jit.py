"""Compilation of array loops to machine code: the one place that knows numba.

Signatures are given, so a kernel is compiled when its module is imported and cached on disk, never
inside a run. The cache of a kernel is keyed by the sources of its module and of everything that the
module imports from wattline, because a kernel contains the code of the functions that it calls.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba import types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

F1 = types.Array(types.float64, 1, "C", readonly=True)
F2 = types.Array(types.float64, 2, "C", readonly=True)
F3 = types.Array(types.float64, 3, "C", readonly=True)
I1 = types.Array(types.int64, 1, "C", readonly=True)
I2 = types.Array(types.int64, 2, "C", readonly=True)
B1 = types.Array(types.boolean, 1, "C", readonly=True)
_ALIVE: list[object] = []  # machine code lives as long as its dispatcher

INT = types.int64
FLOAT = types.float64
BOOL = types.boolean

_PACKAGE = Path(__file__).parent
_KERNEL = re.compile(r"^@kernel\(", re.MULTILINE)
_TOP_IMPORT = re.compile(r"^from (wattline[\w.]*) import", re.MULTILINE)
_IMPORT = re.compile(r"^\s*from (wattline[\w.]*) import", re.MULTILINE)


def record(cls: type, *fields: object) -> object:
    """Return the argument type of a `NamedTuple` class, with these types of its fields.

    Kernels with many arguments take them in a few records; reading a field costs nothing.
    """
    return types.NamedTuple(fields, cls)


def kernel(*arguments: object) -> Callable[[F], F]:
    """Compile a function of these argument types (arrays are read-only inside).

    The result is called without numba's dispatch on argument types, which would cost more than the work
    itself. So only columns of tables may go in: a table checks them when it is built.
    """

    def compile_now(function: F) -> F:
        dispatcher = numba.njit(function)
        dispatcher._cache = _SourceCache(function)
        dispatcher.compile(tuple(arguments))
        dispatcher.disable_compile()
        compiled: Any
        (compiled,) = dispatcher.overloads.values()
        _ALIVE.append(dispatcher)
        entry: F = compiled.entry_point
        return entry

    return compile_now


def inner(function: F) -> F:
    """Compile a function that only kernels call."""
    compiled: F = numba.njit(function)
    return compiled


@inner
def find(column: NDArray[np.generic], length: int, value: float) -> int:
    """Return the first of the *length* leading rows of an ascending *column* that is not below *value*."""
    low, high = 0, length
    while low < high:
        middle = (low + high) // 2
        if column[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


KernelListener = Callable[[str, bool], None]
"""Called with the name of each kernel, and whether it is compiled now: else it was in the cache."""
_listeners: list[KernelListener] = []


def on_kernel(listener: KernelListener) -> None:
    """Let *listener* be called for every kernel that is loaded or compiled from now on."""
    _listeners[:] = [listener]


def count_all_kernels() -> int:
    """Return the number of kernels of the package."""
    return sum(len(_KERNEL.findall(path.read_text("utf-8"))) for path in _PACKAGE.rglob("*.py"))


def count_kernels(*modules: str) -> int:
    """Return the number of kernels in *modules* and in all that they import when they are imported."""
    seen: set[Path] = set()
    waiting = list(modules)
    count = 0
    while waiting:
        parts = waiting.pop().split(".")[1:]
        for depth in range(len(parts) + 1):  # a module is imported after its packages
            stem = _PACKAGE.joinpath(*parts[:depth])
            path = stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")
            if path not in seen and path.is_file():
                seen.add(path)
                text = path.read_text("utf-8")
                count += len(_KERNEL.findall(text))
                waiting += _TOP_IMPORT.findall(text)
    return count


def compile_kernels() -> int:
    """Compile every kernel of the package into the cache on disk; return the number of modules."""
    modules = [path for path in sorted(_PACKAGE.rglob("*.py")) if _KERNEL.search(path.read_text("utf-8"))]
    for path in modules:
        import_module(".".join(("wattline", *path.relative_to(_PACKAGE).with_suffix("").parts)))
    return len(modules)


class _SourceCache(FunctionCache):
    """Numba's cache on disk, valid as long as no source that the kernel may contain has changed.

    Numba itself looks at the kernel's own file only, and would run stale code after an edit of another.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = IndexDataCacheFile(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=compute_stamp(Path(function.__code__.co_filename)),
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled kernel, or None if it must be compiled; call the listener."""
        found = super().load_overload(sig, target_context)
        for listener in _listeners:
            listener(self._name.rpartition(".")[2], found is None)
        return found


def compute_stamp(source: Path) -> str:
    """Return a digest of *source* and of every module of wattline that it imports, directly or not."""
    seen: set[Path] = set()
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += _read_source(path)[1]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(seen):
        digest.update(_read_source(path)[0])
    return digest.hexdigest()


@cache
def _read_source(path: Path) -> tuple[bytes, tuple[Path, ...]]:
    """Return the digest of one source, and the modules that it imports from wattline."""
    text = path.read_text(encoding="utf-8")
    stems = {_PACKAGE.joinpath(*name.split(".")[1:]) for name in _IMPORT.findall(text)}
    files = (stem.with_suffix(".py") for stem in stems)
    return hashlib.blake2b(text.encode(), digest_size=16).digest(), tuple(f for f in files if f.is_file())
