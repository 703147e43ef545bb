"""Compiled steps on disk, so that a second start of the same training compiles nothing.

An entry is a folder named by the fingerprint of the step. It is written elsewhere and renamed, so that
processes may share the cache. An entry that cannot be read is deleted and compiled anew.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.step.executed_code import user_stacklevel
from wattline.fusion.torch_internals import CompiledCode, load_compiled_code

CACHE_DIR = "WATTLINE_CACHE_DIR"
_ENTRY = "entry"


@dataclass(frozen=True)
class CacheEntry:
    """A stored graph: its code, the names of captured values, and *extra* of the caller."""

    artifact: bytes
    kernels: dict[str, str]  # digests of shared libraries, by the digest of their source
    tensors: list[str]
    numbers: list[str]
    returns_tensor: bool
    extra: Any
    folder: Path = field(default=Path(), compare=False)

    def load(self) -> Callable[..., Any]:
        """Return the compiled function."""
        files = {source: str(self.folder / f"{name}.so") for source, name in self.kernels.items()}
        return load_compiled_code(self.artifact, files)


def find_cache_folder() -> Path | None:
    """Return the folder of the cache; None if WATTLINE_CACHE_DIR is set to an empty text."""
    own = os.environ.get(CACHE_DIR)
    if own is not None:
        return Path(own) / "fusion" if own else None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "wattline" / "fusion"


def read_entry(fingerprint: str) -> CacheEntry | None:
    """Return an entry; None if there is none, or, after a warning, if it is damaged."""
    folder = find_cache_folder()
    if folder is None or not (folder / fingerprint / _ENTRY).exists():
        return None
    place = folder / fingerprint
    try:
        digest, _, content = (place / _ENTRY).read_bytes().partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != digest:
            raise ValueError("its checksum is wrong")
        values = pickle.loads(content)
        for name in values["kernels"].values():
            if hashlib.sha256((place / f"{name}.so").read_bytes()).hexdigest() != name:
                raise ValueError(f"the checksum of {name[:12]}….so is wrong")
        return CacheEntry(**values, folder=place)
    except Exception as error:  # a damaged pickle raises errors of any type
        discard_entry(fingerprint, f"{type(error).__name__}: {error}")
        return None


def discard_entry(fingerprint: str, reason: str) -> None:
    """Delete an entry that cannot be used, with a warning."""
    folder = find_cache_folder()
    if folder is None:
        return
    warnings.warn(
        f"the compile cache has a damaged entry, {folder / fingerprint} ({reason}); "
        "it is deleted, and the step is compiled anew",
        FusionWarning,
        stacklevel=user_stacklevel(),
    )
    remove_entry(fingerprint)


def remove_entry(fingerprint: str) -> None:
    """Delete an entry, if there is one."""
    folder = find_cache_folder()
    if folder is not None:
        shutil.rmtree(folder / fingerprint, ignore_errors=True)


def write_entry(
    fingerprint: str,
    code: CompiledCode,
    tensors: list[str],
    numbers: list[str],
    *,
    returns_tensor: bool,
    extra: Any,
) -> None:
    """Store a compiled graph; do nothing where the folder cannot be written or *extra* not be stored."""
    folder = find_cache_folder()
    if folder is None or code.artifact is None:
        return
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = Path(tempfile.mkdtemp(dir=folder, prefix="writing-"))
        names = {}
        for source, path in code.kernels.items():
            library = Path(path).read_bytes()
            names[source] = hashlib.sha256(library).hexdigest()
            (temporary / f"{names[source]}.so").write_bytes(library)
        values = {
            "artifact": code.artifact,
            "kernels": names,
            "tensors": tensors,
            "numbers": numbers,
            "returns_tensor": returns_tensor,
            "extra": extra,
        }
        content = pickle.dumps(values)
        (temporary / _ENTRY).write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        temporary.rename(folder / fingerprint)
    except (OSError, pickle.PicklingError, TypeError, AttributeError):
        pass  # a read-only folder, another process has been faster, or a result that cannot be stored
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
