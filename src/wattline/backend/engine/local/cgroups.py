"""Limits of a job's cores and memory: cgroups v2 or v1, else CPU affinity and process limits.

A job's cgroup is `PARENT/NAME`, and two attempts are never in it at once. The service creates it, the ranks
join it before they execute the command, and the supervisor stays outside, so that it survives when the kernel
kills the job for using too much memory.

    v2       below the service's own cgroup, if it may be divided (root's, or systemd's `Delegate=yes`). Only
             a cgroup without processes may limit those below it, so if the service's process is in it, it
             moves to `wattline-self`. Cores by cpuset, else by cpu.max and affinity; memory by memory.max,
             no swap, and the kernel kills the whole job, not one data loader that the rest would wait for
    v1       below the top of each hierarchy, as Slurm does it: only root can. Cores by cpuset, memory by
             memory.limit_in_bytes, with swap included where the kernel counts it
    neither  CPU affinity, and RLIMIT_DATA (see `rank_process` for what that does not count)
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PERIOD_US = 100_000
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.001, 0.05
_UNRECLAIMABLE = ("anon", "shmem", "rss")  # of memory.stat; v1 calls anonymous memory rss


@dataclass(frozen=True)
class PreparedLimits:
    """Limits of one attempt: *cgroups* to join, *cores* for affinity (None: a cgroup has them), and how."""

    cgroups: tuple[str, ...]
    cores: tuple[int, ...] | None
    method: str


@dataclass(frozen=True)
class ResourceLimits:
    """The limits that this machine supports. *root* has the cgroups, *own* names that of this process."""

    root: Path = Path("/sys/fs/cgroup")
    own: Path = Path("/proc/self/cgroup")
    parent: str = "wattline"

    def prepare(self, name: str, cores: Sequence[int] | None, memory_bytes: int | None) -> PreparedLimits:
        """Create the cgroups of one attempt (None: no limit). The supervisor applies what no cgroup can."""
        controllers, home = self._find_v2()
        parents = self._parents(home)
        created = [folder for at in parents if (folder := self._create(at, name, controllers)) is not None]
        limits_cores = [folder for folder in created if _set_cores(folder, cores)]
        limits_memory = [folder for folder in created if _set_memory(folder, memory_bytes)]
        unused = [folder for folder in created if folder not in limits_cores and folder not in limits_memory]
        for folder in unused:
            _remove(folder, 0.0)
        by_cpuset = any(_has_cpuset(folder) for folder in limits_cores)
        version = "v1" if home is None else "v2"
        methods = [
            f"cores by a cgroup ({version}, cpuset)"
            if by_cpuset
            else f"cores by a cgroup ({version}, cpu.max) and CPU affinity"
            if limits_cores
            else "cores by CPU affinity",
            f"memory by a cgroup ({version})" if limits_memory else "memory of each process by RLIMIT_DATA",
        ]
        return PreparedLimits(
            tuple(str(folder) for folder in created if folder not in unused),
            None if by_cpuset or cores is None else tuple(cores),
            ", ".join(methods),
        )

    def retune(self, name: str, cores: Sequence[int] | None, memory_bytes: int | None) -> bool:
        """Change the limits of a running job; False: not all could be changed.

        Memory is never limited below what the job uses: the kernel would kill it.
        """
        folders = self._folders(name)
        if memory_bytes is not None and any(_used_bytes(folder) > memory_bytes for folder in folders):
            return False
        memory_set = [_set_memory(folder, memory_bytes) for folder in folders]
        cores_set = [_set_cores(folder, cores) and _move_threads(folder, cores) for folder in folders]
        return any(cores_set) and any(memory_set)

    def release(self, name: str, timeout_s: float = 2.0) -> bool:
        """Remove the cgroups of an attempt that has ended; False: one still has processes."""
        until_s = time.monotonic() + timeout_s
        removed = [_remove(folder, until_s) for folder in self._folders(name)]
        return all(removed)

    @property
    def method(self) -> str:
        """Description of the limits that this machine supports, found by creating a cgroup."""
        name = f"probe-{os.getpid()}"
        try:
            return self.prepare(name, None, None).method
        finally:
            self.release(name)

    def _folders(self, name: str) -> list[Path]:
        _, home = self._find_v2()
        return [folder for parent in self._parents(home) if (folder := parent / _folder_name(name)).is_dir()]

    def _parents(self, home: Path | None) -> list[Path]:
        """Return the folders that contain the cgroups of jobs."""
        if home is not None:
            return [home / self.parent]
        return [top / self.parent for word in ("cpuset", "memory") if (top := self.root / word).is_dir()]

    def _find_v2(self) -> tuple[tuple[str, ...], Path | None]:
        """Return the available v2 controllers, and the cgroup below which jobs get theirs; None: use v1."""
        with suppress(OSError):
            for line in self.own.read_text().splitlines():
                if line.startswith("0::/"):
                    at = self.root / line.removeprefix("0::/")
                    if at.name == f"{self.parent}-self":
                        at = at.parent
                    known = (at / "cgroup.controllers").read_text().split()
                    controllers = tuple(word for word in ("cpuset", "cpu", "memory") if word in known)
                    return (controllers, at) if controllers else ((), None)
        return (), None

    def _create(self, parent: Path, name: str, controllers: Iterable[str]) -> Path | None:
        """Create the cgroup of one job, with *controllers* enabled; None: not permitted."""
        try:
            parent.mkdir(exist_ok=True)
            if controllers:
                self._enable(parent.parent, controllers)
                self._enable(parent, controllers)
            else:
                _copy_cpusets(parent)
            folder = parent / _folder_name(name)
            folder.mkdir(exist_ok=True)
            if not controllers:
                _copy_cpusets(folder)
            return folder
        except OSError:
            return None

    def _enable(self, folder: Path, controllers: Iterable[str]) -> None:
        """Enable controllers for the cgroups below *folder*; without them, setting a limit fails."""
        control = folder / "cgroup.subtree_control"
        have = control.read_text().split() if control.exists() else []
        for word in controllers:
            if word in have:
                continue
            try:
                _write(control, f"+{word}")
            except OSError as error:
                if error.errno != errno.EBUSY:
                    continue
                aside = folder / f"{self.parent}-self"  # this process is in it
                aside.mkdir(exist_ok=True)
                _write(aside / "cgroup.procs", str(os.getpid()))
                with suppress(OSError):
                    _write(control, f"+{word}")


def _folder_name(name: str) -> str:
    """Return *name* with only characters that are safe in a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "_"


def _write(path: Path, text: str) -> None:
    """Write to an existing file: none can be created in a cgroup."""
    file = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _copy_cpusets(folder: Path) -> None:
    """Copy the cpuset (v1) of the parent: no process can join an empty one."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        path = folder / name
        if path.exists() and not path.read_text().strip():
            _write(path, (folder.parent / name).read_text().strip())


def _has_cpuset(folder: Path) -> bool:
    return (folder / "cpuset.cpus").exists()


def _set_cores(folder: Path, cores: Sequence[int] | None) -> bool:
    """Limit a cgroup to these cores, or to their number; return whether that worked."""
    quota = "max" if cores is None else str(len(cores) * _PERIOD_US)
    try:
        if _has_cpuset(folder):
            text = ",".join(map(str, cores)) if cores is not None else _all_cores(folder)
            _write(folder / "cpuset.cpus", text)
        else:
            _write(folder / "cpu.max", f"{quota} {_PERIOD_US}")
    except OSError:
        return False
    return True


def _all_cores(folder: Path) -> str:
    """Return the text that gives a cpuset all cores; in v2 an empty line does."""
    is_v1 = (folder / "cpuset.effective_cpus").exists()
    return (folder.parent / "cpuset.cpus").read_text().strip() if is_v1 else "\n"


def _set_memory(folder: Path, memory_bytes: int | None) -> bool:
    """Limit the memory of a cgroup; return whether that worked."""
    try:
        if (folder / "memory.max").exists():
            for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                with suppress(OSError):  # kernels without swap, or before 4.19
                    _write(folder / name, value)
            _write(folder / "memory.max", "max" if memory_bytes is None else str(memory_bytes))
            return True
        limit = str(-1 if memory_bytes is None else memory_bytes)
        # The limit with swap is never below the one without, so one order works to raise, the other to lower.
        with_swap = folder / "memory.memsw.limit_in_bytes"
        with suppress(OSError):
            _write(with_swap, limit)
        _write(folder / "memory.limit_in_bytes", limit)
        with suppress(OSError):
            _write(with_swap, limit)
    except OSError:
        return False
    return True


def _used_bytes(folder: Path) -> int:
    """Return the memory of a cgroup that the kernel cannot reclaim."""
    try:
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(value) for key, value in lines if key in _UNRECLAIMABLE)
    except (OSError, ValueError):
        return 0


def _move_threads(folder: Path, cores: Sequence[int] | None) -> bool:
    """Set the CPU affinity of all threads in a cgroup, unless its cpuset does that."""
    if _has_cpuset(folder):
        return True
    allowed = set(cores) if cores is not None else set(range(os.cpu_count() or 1))
    try:
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with suppress(ProcessLookupError):
                        os.sched_setaffinity(int(thread), allowed)
    except OSError:
        return False
    return True


def _remove(folder: Path, until_s: float) -> bool:
    """Remove a cgroup and those below as soon as they are empty; False: they were not until *until_s*."""
    pause_s = _FIRST_PAUSE_S
    while folder.is_dir():
        for at, _, _ in os.walk(folder, topdown=False):
            with suppress(OSError):
                os.rmdir(at)
        if not folder.is_dir():
            return True
        if time.monotonic() >= until_s:
            return False
        time.sleep(pause_s)  # v1 has no notification of empty cgroups
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
    return True
