"""Checks of meters, GPUs and installed tools for `wattline doctor`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from wattline.errors import MeterError, WattlineError
from wattline.meter import Gpu, Meter, open_meter
from wattline.meter.caps.record import state_folder

_T = TypeVar("_T")
_TOOLS = ("sacct", "squeue", "nvidia-smi", "torchrun")
_PACKAGES = ("torch", "nvidia-ml-py")


@dataclass(frozen=True)
class MeterStatus:
    """One kind of meter: whether it works, and what it reports or the error."""

    name: str
    works: bool
    says: str
    hint: str = ""


@dataclass(frozen=True)
class GpuStatus:
    """One GPU; a value of None cannot be read.

    *caps* and *clocks*: whether they can be set; None: not tried, because a try would change them.
    """

    index: int
    uuid: str
    name: str
    kind: str
    method: str
    power_w: float | None
    energy_j: float | None
    cap_w: float | None
    least_cap_w: float | None
    most_cap_w: float | None
    caps: bool
    clocks: bool | None
    why: str = ""
    hint: str = ""
    renewed_s: float | None = None  # seconds between two renewals of the energy counter; None: unknown


def check_meter(name: str) -> MeterStatus:
    """Open the meter *name* and return whether it works."""
    try:
        meter = open_meter(name)
    except WattlineError as error:
        return MeterStatus(name, False, error.message, error.hint)
    try:
        return MeterStatus(name, bool(meter.gpus), _describe_meter(meter))
    except MeterError as error:
        return MeterStatus(name, False, error.message, error.hint)
    finally:
        meter.close()


def _describe_meter(meter: Meter) -> str:
    noun = "counter" if meter.name == "rapl" else "GPU"
    count = len(meter.gpus)
    driver = getattr(meter, "driver", "")
    return f"{count} {noun}{'' if count == 1 else 's'}" + (f", driver {driver}" if driver else "")


def check_gpu(gpu: Gpu, held: set[str], renewed_s: float | None = None) -> GpuStatus:
    """Read *gpu* and check whether its cap can be set; *held* are the UUIDs of GPUs with a cap in force."""
    least_w, most_w = _try_read(gpu.cap_range_w) or (None, None)
    cap_w = _try_read(gpu.cap_w)
    caps, why, hint = _check_cap(gpu, cap_w, held)
    return GpuStatus(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        kind=gpu.kind,
        method=gpu.method,
        power_w=_try_read(gpu.power_w),
        energy_j=_try_read(gpu.energy_j),
        cap_w=cap_w,
        least_cap_w=least_w,
        most_cap_w=most_w,
        caps=caps,
        clocks=None if caps else False,
        why=why,
        hint=hint,
        renewed_s=renewed_s,
    )


def _try_read(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except MeterError:
        return None


def _check_cap(gpu: Gpu, cap_w: float | None, held: set[str]) -> tuple[bool, str, str]:
    """Return whether caps can be set, else why not; sets the present cap again, which changes nothing."""
    if gpu.uuid in held:
        return False, "another process holds its cap", "wait until that process has ended"
    try:
        gpu.set_cap(gpu.cap_w() if cap_w is None else cap_w)
    except WattlineError as error:
        return False, error.message, error.hint
    return True, "", ""


def check_tools() -> dict[str, Any]:
    """Return the paths of tools, the cgroup version, the versions of packages, and the state folder."""
    return {
        "tools": {name: shutil.which(name) for name in _TOOLS},
        "cgroup": _cgroup_version(),
        "packages": {name: _package_version(name) for name in _PACKAGES},
        "state": str(state_folder()),
    }


def _cgroup_version(root: Path = Path("/sys/fs/cgroup")) -> str | None:
    if (root / "cgroup.controllers").exists():
        return "v2"
    return "v1" if root.is_dir() and any(root.iterdir()) else None


def _package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
