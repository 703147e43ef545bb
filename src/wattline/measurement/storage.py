"""Bandwidth of the storage under a folder, measured once per node and device and cached.

Blocks of the size of a picture are read in a scattered order, several at a time, as the workers of a
loader do, from a file that was written for it and dropped from the page cache.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from wattline.errors import BackendError

_BLOCK = 256 * 1024
_MIB = 2.0**20


class Storage(NamedTuple):
    """MiB per second of a device, and whether that was remembered."""

    mib_s: float
    device: str
    remembered: bool


def storage(
    folder: Path,
    now_s: Callable[[], float],
    *,
    again: bool = False,
    cache: Path | None = None,
    size_mib: int = 256,
    most_s: float = 5.0,
) -> Storage:
    """Return the storage under *folder*: what is remembered of it, or measured now (*again*: in any case)."""
    cache = cache or default_cache()
    name = device(folder)
    known = _remembered(cache)
    if not again and name in known:
        return Storage(known[name], name, True)
    mib_s = read_mib_s(folder, now_s, size_mib=size_mib, most_s=most_s)
    _remember(cache, {**known, name: mib_s})
    return Storage(mib_s, name, False)


def default_cache() -> Path:
    """Return the path of the cache: under $XDG_CACHE_HOME, or ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "wattline" / "storage.json"


def device(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Node, device and mount point of *folder*: `node7 /dev/sda1 /data`."""
    place = folder.resolve()
    while not os.path.ismount(place) and place != place.parent:
        place = place.parent
    source = ""
    try:
        for line in mounts.read_text("utf-8", "replace").splitlines():
            fields = line.split(" ")
            if fields[4].replace("\\040", " ") == str(place):
                source = fields[fields.index("-") + 2]
    except (OSError, ValueError, IndexError):
        pass  # not Linux: the mount point will do
    return " ".join(filter(None, (os.uname().nodename if hasattr(os, "uname") else "", source, str(place))))


def read_mib_s(
    folder: Path, now_s: Callable[[], float], *, size_mib: int = 256, most_s: float = 5.0
) -> float:
    """MiB per second of scattered reads under *folder*, from a file of at most *size_mib*, while *most_s*."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".wattline-") as file:
            began_s, chunk = now_s(), os.urandom(_BLOCK)
            blocks = 0
            while blocks < size_mib * 4 and (blocks < 4 or now_s() - began_s < most_s):
                file.write(chunk)
                blocks += 1
            file.flush()
            os.fsync(file.fileno())
            _forget(file.fileno())
            return _scattered_mib_s(file.fileno(), blocks, now_s, most_s)
    except OSError as error:
        raise BackendError(
            f"{folder}: the storage cannot be measured: {error.strerror}",
            "say how fast it is with --storage 500MB/s, or name a folder on it that can be written",
        ) from None


def _scattered_mib_s(file: int, blocks: int, now_s: Callable[[], float], most_s: float) -> float:
    step = next(s for s in (7919, 6007, 5003, 3001) if blocks % s)  # a prime: every block comes once
    order = [i * step % blocks for i in range(blocks)]
    began_s = now_s()

    def read(block: int) -> int:
        return len(os.pread(file, _BLOCK, block * _BLOCK)) if now_s() - began_s < most_s else 0

    with ThreadPoolExecutor(4) as workers:
        done = sum(workers.map(read, order))
    return done / _MIB / max(now_s() - began_s, 1e-9)


def _forget(file: int) -> None:
    """Have the system drop a file from its memory, where it can be asked to."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def _remembered(cache: Path) -> dict[str, float]:
    """Return the contents of the cache; an unreadable cache is empty."""
    try:
        found: Any = json.loads(cache.read_text("utf-8"))
        return {str(name): float(mib_s) for name, mib_s in found["mib_s"].items() if float(mib_s) > 0}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _remember(cache: Path, known: Mapping[str, float]) -> None:
    """Write a temporary file and rename it, so that a concurrent reader sees all or nothing."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        beside = cache.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps({"mib_s": dict(known)}, indent=2), encoding="utf-8")
        beside.replace(cache)
    except OSError:
        pass  # a home that cannot be written to: measured again next time
