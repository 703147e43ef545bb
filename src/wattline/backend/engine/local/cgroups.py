"""What keeps a job to its cores and memory: cgroups of either kind, else affinity and limits of processes.

A job's cgroup is `PARENT/NAME`, and two attempts are never in it at once. The controller makes it, the
ranks join it before they become the job, and the shim stays outside: what kills a job for want of memory
leaves who tells of it.

    v2       under the cgroup that we are in, if it is ours to divide (root's, or systemd's `Delegate=yes`).
             Only a cgroup without processes may limit those below it, so where we are in it ourselves we step
             aside, into `wattline-self`. Cores by cpuset, else by cpu.max and affinity; memory by memory.max,
             no swap, and when it is used up all of the job dies, not some loader for which the rest waits
    v1       under the top of each hierarchy, as Slurm has it: only root can. Cores by cpuset, memory by
             memory.limit_in_bytes, with swap counted in where the kernel counts it
    neither  CPU affinity, and RLIMIT_DATA (see `shim` for what that does not see)
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
_HELD = ("anon", "shmem", "rss")  # of memory.stat: what cannot be taken back; rss is the first kind's anon


@dataclass(frozen=True)
class Prepared:
    """What a launch needs: *cgroups* to join, *cores* for affinity (None: a cgroup has them); and how."""

    cgroups: tuple[str, ...]
    cores: tuple[int, ...] | None
    method: str


@dataclass(frozen=True)
class Limits:
    """The limits that can be had here: *root* is where cgroups are, *own* tells which one is ours."""

    root: Path = Path("/sys/fs/cgroup")
    own: Path = Path("/proc/self/cgroup")
    parent: str = "wattline"

    def prepare(self, name: str, cores: Sequence[int] | None, memory_bytes: int | None) -> Prepared:
        """Make what limits one attempt, None: not at all; what no cgroup can do is left to the shim."""
        controllers, home = self._second()
        parents = self._parents(home)
        made = [folder for at in parents if (folder := self._made(at, name, controllers)) is not None]
        bound = [folder for folder in made if _set_cores(folder, cores)]
        held = [folder for folder in made if _set_memory(folder, memory_bytes)]
        useless = [folder for folder in made if folder not in bound and folder not in held]
        for folder in useless:
            _remove(folder, 0.0)
        by_set = any(_has_set(folder) for folder in bound)
        number = "v1" if home is None else "v2"
        ways = [
            f"cores by a cgroup ({number}, cpuset)"
            if by_set
            else f"cores by a cgroup ({number}, cpu.max) and CPU affinity"
            if bound
            else "cores by CPU affinity",
            f"memory by a cgroup ({number})" if held else "memory of each process by RLIMIT_DATA",
        ]
        return Prepared(
            tuple(str(folder) for folder in made if folder not in useless),
            None if by_set or cores is None else tuple(cores),
            ", ".join(ways),
        )

    def retune(self, name: str, cores: Sequence[int] | None, memory_bytes: int | None) -> bool:
        """Change the limits of a job that runs; False: not all could be, and it goes on with what it has.

        Memory is never set below what the job holds: that would kill it.
        """
        folders = self._folders(name)
        if memory_bytes is not None and any(_held_bytes(folder) > memory_bytes for folder in folders):
            return False
        done_memory = [_set_memory(folder, memory_bytes) for folder in folders]
        done_cores = [_set_cores(folder, cores) and _move(folder, cores) for folder in folders]
        return any(done_cores) and any(done_memory)

    def release(self, name: str, patience_s: float = 2.0) -> bool:
        """Remove what was made, once its processes are gone; False: something is still there, try later."""
        until = time.monotonic() + patience_s
        removed = [
            _remove(folder, until) for folder in self._folders(name)
        ]  # all of them, also after one that is not
        return all(removed)

    @property
    def method(self) -> str:
        """How jobs are limited here, found out by trying."""
        name = f"probe-{os.getpid()}"
        try:
            return self.prepare(name, None, None).method
        finally:
            self.release(name)

    def _folders(self, name: str) -> list[Path]:
        _, home = self._second()
        return [folder for parent in self._parents(home) if (folder := parent / _safe(name)).is_dir()]

    def _parents(self, home: Path | None) -> list[Path]:
        """The folders in which those of jobs are."""
        if home is not None:
            return [home / self.parent]
        return [top / self.parent for word in ("cpuset", "memory") if (top := self.root / word).is_dir()]

    def _second(self) -> tuple[tuple[str, ...], Path | None]:
        """The controllers to be had of the second kind, and the cgroup that divides them among jobs."""
        with suppress(OSError):
            for line in self.own.read_text().splitlines():
                if line.startswith("0::/"):
                    at = self.root / line.removeprefix("0::/")
                    if at.name == f"{self.parent}-self":
                        at = at.parent
                    known = (at / "cgroup.controllers").read_text().split()
                    found = tuple(word for word in ("cpuset", "cpu", "memory") if word in known)
                    return (found, at) if found else ((), None)
        return (), None

    def _made(self, parent: Path, name: str, controllers: Iterable[str]) -> Path | None:
        """The folder of one job, with *controllers* handed down to it; None: we may not."""
        try:
            parent.mkdir(exist_ok=True)
            if controllers:
                self._hand_down(parent.parent, controllers)
                self._hand_down(parent, controllers)
            else:
                _copy_sets(parent)
            folder = parent / _safe(name)
            folder.mkdir(exist_ok=True)
            if not controllers:
                _copy_sets(folder)
            return folder
        except OSError:
            return None

    def _hand_down(self, folder: Path, controllers: Iterable[str]) -> None:
        """Let those below *folder* be limited; who cannot be is found out when its limit is set."""
        control = folder / "cgroup.subtree_control"
        have = control.read_text().split() if control.exists() else []
        for word in controllers:
            if word in have:
                continue
            try:
                _put(control, f"+{word}")
            except OSError as error:
                if error.errno != errno.EBUSY:
                    continue
                aside = folder / f"{self.parent}-self"  # we are in it ourselves
                aside.mkdir(exist_ok=True)
                _put(aside / "cgroup.procs", str(os.getpid()))
                with suppress(OSError):
                    _put(control, f"+{word}")


def _safe(name: str) -> str:
    """A name as a folder's."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "_"


def _put(path: Path, text: str) -> None:
    """Into a file that is there: in a cgroup none can be made."""
    file = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _copy_sets(folder: Path) -> None:
    """Give a cpuset (v1) what its parent has: it begins with nothing, and then nobody can join."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        path = folder / name
        if path.exists() and not path.read_text().strip():
            _put(path, (folder.parent / name).read_text().strip())


def _has_set(folder: Path) -> bool:
    return (folder / "cpuset.cpus").exists()


def _set_cores(folder: Path, cores: Sequence[int] | None) -> bool:
    """Whether a cgroup now has these cores, or that many of them."""
    quota = "max" if cores is None else str(len(cores) * _PERIOD_US)
    try:
        if _has_set(folder):
            text = ",".join(map(str, cores)) if cores is not None else _all_cores(folder)
            _put(folder / "cpuset.cpus", text)
        else:
            _put(folder / "cpu.max", f"{quota} {_PERIOD_US}")
    except OSError:
        return False
    return True


def _all_cores(folder: Path) -> str:
    """What a cpuset may have at most, as it is written there: in the second kind, nothing means all."""
    first = (folder / "cpuset.effective_cpus").exists()
    return (folder.parent / "cpuset.cpus").read_text().strip() if first else "\n"


def _set_memory(folder: Path, memory_bytes: int | None) -> bool:
    """Whether a cgroup now has this much memory."""
    try:
        if (folder / "memory.max").exists():
            for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                with suppress(OSError):  # kernels without swap, or before 4.19
                    _put(folder / name, value)
            _put(folder / "memory.max", "max" if memory_bytes is None else str(memory_bytes))
            return True
        limit = str(-1 if memory_bytes is None else memory_bytes)
        both = folder / "memory.memsw.limit_in_bytes"  # never below the one without swap
        with suppress(OSError):
            _put(both, limit)
        _put(folder / "memory.limit_in_bytes", limit)
        with suppress(OSError):
            _put(both, limit)
    except OSError:
        return False
    return True


def _held_bytes(folder: Path) -> int:
    """The memory of a cgroup that cannot be taken back without killing somebody."""
    try:
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(value) for key, value in lines if key in _HELD)
    except (OSError, ValueError):
        return 0


def _move(folder: Path, cores: Sequence[int] | None) -> bool:
    """Put the threads of a job on other cores, where no cpuset has done so."""
    if _has_set(folder):
        return True
    every = set(cores) if cores is not None else set(range(os.cpu_count() or 1))
    try:
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with suppress(ProcessLookupError):
                        os.sched_setaffinity(int(thread), every)
    except OSError:
        return False
    return True


def _remove(folder: Path, until: float) -> bool:
    """Remove a cgroup and those below, as soon as it is empty; False: it was not in time."""
    pause_s = _FIRST_PAUSE_S
    while folder.is_dir():
        for at, _, _ in os.walk(folder, topdown=False):
            with suppress(OSError):
                os.rmdir(at)
        if not folder.is_dir():
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(pause_s)  # cgroups of the first kind do not tell when they are empty
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
    return True
