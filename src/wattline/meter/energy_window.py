"""Energy and time of several GPUs between two moments.

    window = EnergyWindow(meter)
    ...
    used = window.end()      # used.energy_j is None without a meter: unmetered, never 0 J

A GPU that is lost meanwhile is counted up to its last reading. A GPU that another process already counts is
read too, but is not part of `counted_j`: the sum over processes has no joule twice.
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
class EnergyPart:
    """Energy of one GPU; *energy_j* is None if it was never read, *lost* the error that ended readings."""

    gpu: Gpu
    energy_j: float | None
    lost: str = ""
    counted: bool = True  # False: another process counts its energy


@dataclass(frozen=True)
class EnergyUse:
    """Seconds on the meter's clock, and the energy that each GPU used in them."""

    seconds: float
    parts: tuple[EnergyPart, ...]

    @property
    def energy_j(self) -> float | None:
        """Joules of all GPUs; None: unmetered."""
        known = [p.energy_j for p in self.parts if p.energy_j is not None]
        return sum(known) if known else None

    @property
    def counted_j(self) -> float | None:
        """Joules that no other process counts, and that can be added to those of others; None: unmetered."""
        if self.energy_j is None:
            return None
        return sum(p.energy_j for p in self.parts if p.counted and p.energy_j is not None)

    @property
    def watts(self) -> float | None:
        """Mean power; None: unmetered, or no time has passed."""
        return None if self.energy_j is None or self.seconds <= 0 else self.energy_j / self.seconds

    @property
    def method(self) -> str:
        """Description of the measurement for reports."""
        return " and ".join(dict.fromkeys(p.gpu.method for p in self.parts)) or "unmetered"

    @property
    def lost(self) -> tuple[str, ...]:
        """The error of each GPU that was lost."""
        return tuple(p.lost for p in self.parts if p.lost)


class EnergyWindow:
    """Energy measurement from construction to `end`; call `sample` regularly to lose less with a lost GPU.

    Without *claim* the energy is only read, and another process may count the same joules.
    """

    def __init__(self, meter: Meter, gpus: Iterable[Gpu] | None = None, *, claim: bool = True) -> None:
        self._meter = meter
        self._gpus = {gpu.uuid: gpu for gpu in (meter.gpus if gpus is None else gpus)}
        self._counted = {uuid: not claim or claim_energy(uuid) for uuid in self._gpus}
        self._claimed = [uuid for uuid, counted in self._counted.items() if counted and claim]
        self._first_j: dict[str, float] = {}
        self._last_j: dict[str, float] = {}
        self._lost: dict[str, str] = {}
        self._start_s = meter.now_s()
        self.sample()

    def sample(self) -> None:
        """Read all GPUs that are not lost."""
        for uuid, gpu in self._gpus.items():
            if uuid in self._lost:
                continue
            try:
                self._last_j[uuid] = gpu.energy_j()
                self._first_j.setdefault(uuid, self._last_j[uuid])
            except MeterError as error:
                self._lost[uuid] = error.message

    def end(self) -> EnergyUse:
        """Return the energy used so far, and let other processes count these GPUs."""
        used = self.read()
        while self._claimed:
            release_energy(self._claimed.pop())
        return used

    def read(self) -> EnergyUse:
        """Return the energy used so far."""
        seconds = max(self._meter.now_s() - self._start_s, 0.0)  # before the reading, as at the start
        self.sample()
        return EnergyUse(seconds, tuple(self._part(uuid, gpu) for uuid, gpu in self._gpus.items()))

    def _part(self, uuid: str, gpu: Gpu) -> EnergyPart:
        used_j = self._last_j[uuid] - self._first_j[uuid] if uuid in self._first_j else None
        return EnergyPart(gpu, used_j, self._lost.get(uuid, ""), self._counted[uuid])


@contextmanager
def measure_energy(meter: Meter, gpus: Iterable[Gpu] | None = None) -> Iterator[list[EnergyUse]]:
    """Measure the energy of the block; it is appended to the list when the block ends or raises."""
    window, used = EnergyWindow(meter, gpus), list[EnergyUse]()
    try:
        yield used
    finally:
        used.append(window.end())


_claims: dict[str, tuple[int, int, int]] = {}  # process id, lock file, and the number of windows that use it
_claims_lock = threading.Lock()


def claim_energy(uuid: str, folder: Path | None = None) -> bool:
    """Claim the right to count a GPU's energy; False: another process holds the claim."""
    with _claims_lock:
        pid, file, windows = _claims.get(uuid, (0, -1, 0))
        if pid != os.getpid():  # a claim made before a fork belongs to the parent
            lock = _lock_file(folder or state_folder(), uuid)
            if lock is None:
                return False
            file, windows = lock, 0
        _claims[uuid] = os.getpid(), file, windows + 1
        return True


def release_energy(uuid: str) -> None:
    """End one window's claim on a GPU; the last one unlocks it."""
    with _claims_lock:
        pid, file, windows = _claims.get(uuid, (0, -1, 0))
        if pid != os.getpid():
            return
        if windows > 1:
            _claims[uuid] = pid, file, windows - 1
            return
        del _claims[uuid]
        if file >= 0:
            os.close(file)


def _lock_file(folder: Path, uuid: str) -> int | None:
    """Open and lock a file, which the kernel unlocks however this process ends.

    None: another process holds the lock. -1: the folder cannot be written, so that locks cannot be checked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"counts-{re.sub(r'[^A-Za-z0-9._-]', '_', uuid)}.lock"
        file = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return -1
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file
