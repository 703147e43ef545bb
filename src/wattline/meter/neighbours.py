"""Other processes on the GPUs of this job, and slowdowns: what spoils a measurement."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from wattline.errors import MeterError
from wattline.meter.protocol import Gpu, SharedGpu


def find_disturbance(gpus: Iterable[Gpu]) -> str:
    """Return what else has an effect on *gpus* now; empty: nothing is known."""
    for gpu in gpus:
        if not isinstance(gpu, SharedGpu):
            continue
        with suppress(MeterError):
            if others := gpu.other_processes():
                return f"process {others[0]} used GPU {gpu.index} too"
            if slowdown := gpu.slowdown():
                return f"GPU {gpu.index} was {slowdown}"
    return ""


def describe_neighbours(gpus: Iterable[Gpu]) -> list[str]:
    """Return a line for each GPU that other processes use, with what is therefore not measured."""
    lines = []
    for gpu in gpus:
        with suppress(MeterError):
            others = gpu.other_processes() if isinstance(gpu, SharedGpu) else ()
            if others:
                names = ", ".join(map(str, others))
                lines.append(
                    f"GPU {gpu.index} is used by another process too ({names}): "
                    "its joules are those of the whole GPU, and a cap holds for all"
                )
    return lines


def select_others(pids: Sequence[int]) -> tuple[int, ...]:
    """Return those of *pids* that do not belong to this job.

    Its own are this process, its descendants, and ranks with the same parent. The driver may know this
    process by its number outside a container: one number without a process here is then taken for it.
    """
    others = [pid for pid in pids if not _is_own(pid)]
    if len(others) == len(pids):
        unseen = next((pid for pid in others if not Path(f"/proc/{pid}").exists()), None)
        others = [pid for pid in others if pid != unseen]
    return tuple(others)


def is_running(pid: int) -> bool:
    """Return True if there is such a process here, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


def _is_own(pid: int) -> bool:
    if pid == os.getpid():
        return True
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1 and _read_parent(pid) == os.getppid():
        return True
    while pid > 1:
        pid = _read_parent(pid)
        if pid == os.getpid():
            return True
    return False


def _read_parent(pid: int) -> int:
    """Return the parent of a process; 0: there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
