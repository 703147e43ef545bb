"""Joules and seconds between two moments, of several GPUs.

    window = Window(meter)
    ...
    used = window.end()      # used.energy_j is None where there is no meter: unmetered, never 0 J

A GPU that is lost on the way counts until it was last read. A GPU that another process already counts is
read all the same, but is not in `counted_j`: added up over processes, no joule is there twice.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wattline.errors import MeterError
from wattline.meter.caps.record import state_folder
from wattline.meter.protocol import Gpu, Meter


@dataclass(frozen=True)
class Part:
    """What one GPU used; *energy_j* is None if it was never read, *lost* says why it was not to the end."""

    gpu: Gpu
    energy_j: float | None
    lost: str = ""
    counted: bool = True  # False: by another process


@dataclass(frozen=True)
class Used:
    """Seconds on the meter's clock, and what each GPU used in them."""

    seconds: float
    parts: tuple[Part, ...]

    @property
    def energy_j(self) -> float | None:
        """Joules of all GPUs; None: unmetered."""
        known = [p.energy_j for p in self.parts if p.energy_j is not None]
        return sum(known) if known else None

    @property
    def counted_j(self) -> float | None:
        """Joules that nobody else counts: what may be added to those of other processes; None: unmetered."""
        if self.energy_j is None:
            return None
        return sum(p.energy_j for p in self.parts if p.counted and p.energy_j is not None)

    @property
    def watts(self) -> float | None:
        """On average; None: unmetered, or no time has passed."""
        return None if self.energy_j is None or self.seconds <= 0 else self.energy_j / self.seconds

    @property
    def method(self) -> str:
        """How the joules are known, in words."""
        return " and ".join(dict.fromkeys(p.gpu.method for p in self.parts)) or "unmetered"

    @property
    def lost(self) -> tuple[str, ...]:
        """A sentence for each GPU that was lost."""
        return tuple(p.lost for p in self.parts if p.lost)


class Window:
    """From when it is made until its end; `look` now and then, so that less is lost with a GPU.

    Without *counting* it only reads: another process may count the same joules.
    """

    def __init__(self, meter: Meter, gpus: Iterable[Gpu] | None = None, *, counting: bool = True) -> None:
        self._meter = meter
        self._gpus = {gpu.uuid: gpu for gpu in (meter.gpus if gpus is None else gpus)}
        self._counted = {uuid: not counting or counts(uuid) for uuid in self._gpus}
        self._counts = [uuid for uuid, counted in self._counted.items() if counted and counting]
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._lost: dict[str, str] = {}
        self._began_s = meter.now_s()
        self.look()

    def look(self) -> None:
        """Read all GPUs that are still there."""
        for uuid, gpu in self._gpus.items():
            if uuid in self._lost:
                continue
            try:
                self._last[uuid] = gpu.energy_j()
                self._first.setdefault(uuid, self._last[uuid])
            except MeterError as error:
                self._lost[uuid] = error.message

    def end(self) -> Used:
        """What was used until now; others may count from now on."""
        used = self.so_far()
        while self._counts:
            let_go(self._counts.pop())
        return used

    def so_far(self) -> Used:
        """What was used until now."""
        seconds = max(self._meter.now_s() - self._began_s, 0.0)  # before reading, as at the beginning
        self.look()
        return Used(seconds, tuple(self._part(uuid, gpu) for uuid, gpu in self._gpus.items()))

    def _part(self, uuid: str, gpu: Gpu) -> Part:
        used_j = self._last[uuid] - self._first[uuid] if uuid in self._first else None
        return Part(gpu, used_j, self._lost.get(uuid, ""), self._counted[uuid])


@contextmanager
def measure(meter: Meter, gpus: Iterable[Gpu] | None = None) -> Iterator[list[Used]]:
    """What the block uses is in the list when it is over, however it ends."""
    window, used = Window(meter, gpus), list[Used]()
    try:
        yield used
    finally:
        used.append(window.end())


_mine: dict[str, tuple[int, int, int]] = {}  # the process, its lock, and how many windows need it
_guard = threading.Lock()


def counts(uuid: str, folder: Path | None = None) -> bool:
    """Whether this process is the one that counts a GPU's joules: the first that asked and still does."""
    with _guard:
        pid, file, windows = _mine.get(uuid, (0, -1, 0))
        if pid != os.getpid():  # a lock that was there before a fork is not ours
            got = _lock(folder or state_folder(), uuid)
            if got is None:
                return False
            file, windows = got, 0
        _mine[uuid] = os.getpid(), file, windows + 1
        return True


def _lock(home: Path, uuid: str) -> int | None:
    """An open file that the kernel unlocks when we end, in whatever way; None: another process has it."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        name = f"counts-{re.sub(r'[^A-Za-z0-9._-]', '_', uuid)}.lock"
        file = os.open(home / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return -1  # nobody can be asked
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def let_go(uuid: str) -> None:
    """One window less that counts a GPU."""
    with _guard:
        pid, file, windows = _mine.get(uuid, (0, -1, 0))
        if pid != os.getpid():
            return
        if windows > 1:
            _mine[uuid] = pid, file, windows - 1
            return
        del _mine[uuid]
        if file >= 0:
            os.close(file)
