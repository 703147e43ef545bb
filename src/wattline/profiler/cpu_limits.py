"""Limits on the cores of a command, by CPU affinity and a cgroup (v2) where one can be created."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_PERIOD_US = 100_000


def count_whole_cores(cpus: float) -> int:
    """Return the number of whole cores that *cpus* need."""
    return math.ceil(cpus)


@dataclass(frozen=True)
class CpuLimits:
    """Limits for commands: the *cores* they may run on, and a *cgroup* where one could be created."""

    cores: tuple[int, ...]
    cgroup: Path | None = None

    def __str__(self) -> str:
        if self.cgroup is not None:
            return "a cgroup (cpu.max) and CPU affinity"
        return (
            "CPU affinity" if hasattr(os, "sched_setaffinity") else "OMP_NUM_THREADS and WATTLINE_CPUS only"
        )

    def wrap_command(self, command: list[str]) -> list[str]:
        """Return a command that joins the cgroup and then runs *command*."""
        if self.cgroup is None:
            return command
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.cgroup / "cgroup.procs"), *command]

    @contextmanager
    def restrict(self, cpus: float) -> Iterator[None]:
        """Limit processes that this thread starts in the block to *cpus* cores."""
        if self.cgroup is not None:
            (self.cgroup / "cpu.max").write_text(f"{round(cpus * _PERIOD_US)} {_PERIOD_US}")
        if not hasattr(os, "sched_setaffinity"):
            yield
            return
        previous = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores[: count_whole_cores(cpus)])
        try:
            yield
        finally:
            os.sched_setaffinity(0, previous)


@contextmanager
def limit_cpus(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[CpuLimits]:
    """Yield the strictest limits available here, with a cgroup (v2) if one can be created."""
    cores = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    cores = cores or tuple(range(os.cpu_count() or 1))
    parent = _find_parent_cgroup(root, own)
    created = _create_cgroup(parent) if parent is not None else None
    try:
        yield CpuLimits(cores[: _read_quota(parent) or None], created)
    finally:
        if parent is not None and created is not None:
            _remove_cgroup(parent, created)


def _find_parent_cgroup(root: Path, own: Path) -> Path | None:
    """Return the cgroup of this process if it has the cpu controller."""
    try:
        for line in own.read_text().splitlines():
            if line.startswith("0::/"):
                cgroup = root / line.removeprefix("0::/")
                return cgroup if "cpu" in (cgroup / "cgroup.controllers").read_text().split() else None
    except OSError:
        pass  # cgroups v1, or none
    return None


def _read_quota(cgroup: Path | None) -> int:
    """Return the whole cores that this process may use; 0: no limit."""
    if cgroup is None:
        return 0
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return 0 if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return 0


def _create_cgroup(parent: Path) -> Path | None:
    """Create a cgroup under *parent* with a writable cpu.max; None if that fails, without leftovers.

    Only a cgroup without processes may limit its children, so this process moves to a child of its own. If
    other processes are in *parent* too, creation fails, since they must not be moved.
    """
    created = parent / f"wattline-{os.getpid()}"
    try:
        if "cpu" not in (parent / "cgroup.subtree_control").read_text().split():
            _own_cgroup(parent).mkdir()
            (_own_cgroup(parent) / "cgroup.procs").write_text(str(os.getpid()))
            (parent / "cgroup.subtree_control").write_text("+cpu")
        created.mkdir()
        (created / "cpu.max").write_text(f"max {_PERIOD_US}")
        return created
    except OSError:
        _remove_cgroup(parent, created)
        return None


def _remove_cgroup(parent: Path, created: Path) -> None:
    with suppress(OSError):
        created.rmdir()
    if _own_cgroup(parent).exists():
        for file, text in (("cgroup.subtree_control", "-cpu"), ("cgroup.procs", str(os.getpid()))):
            with suppress(OSError):
                (parent / file).write_text(text)
        with suppress(OSError):
            _own_cgroup(parent).rmdir()


def _own_cgroup(parent: Path) -> Path:
    return parent / f"wattline-{os.getpid()}-self"
