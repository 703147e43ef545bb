"""Jobs on the GPUs of this machine, their energy, and the GPUs' power limits."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from wattline.errors import MeterError, WattlineError
from wattline.meter.caps.guard import CapGuard, guard_caps
from wattline.meter.protocol import Gpu, Meter

_logger = logging.getLogger(__name__)


class GpuAllocator:
    """GPUs by index. The energy of a GPU is split equally between the jobs that occupy it.

    *state* is the folder in which changed power limits are recorded.
    """

    def __init__(self, meter: Meter, state: Path) -> None:
        self.meter = meter
        self._occupants: dict[int, list[str]] = {gpu: [] for gpu in range(len(meter.gpus))}
        self._last_j: dict[int, float | None] = {gpu: self._read_j(gpu) for gpu in self._occupants}
        self._used_j: dict[str, float | None] = {}
        first = list(self._last_j.values())
        self._first_j = None if None in first else sum(v for v in first if v is not None)
        self._cap_guard: CapGuard = guard_caps(meter.gpus, state=state, warn=_logger.warning).__enter__()

    def close(self) -> None:
        """Restore power limits and close the meter."""
        self._cap_guard.__exit__(None, None, None)
        self.meter.close()

    # -- allocation

    def choose(self, count: int, among: Sequence[int], leased: Collection[int]) -> tuple[int, ...]:
        """Return *count* GPUs that are not leased: an aligned block of neighbours if there is one, else the
        first. The processes of a preempted attempt may still occupy them.
        """
        free = [gpu for gpu in among if gpu not in leased]
        if len(free) < count:
            raise MeterError(f"{count} GPUs were allocated on a node with {len(free)} free GPUs")
        block = 1 << (count - 1).bit_length()
        free_set = set(free)
        for first in range(min(among, default=0), max(among, default=0) + 1):
            neighbours = tuple(range(first, first + count))
            if (first - among[0]) % block == 0 and free_set.issuperset(neighbours):
                return neighbours
        return tuple(free[:count])

    def occupy(
        self,
        jobs: Sequence[str],
        gpus: Sequence[int],
        start_readings: Sequence[float | None] = (),
        members: int = 1,
    ) -> None:
        """Count the energy of *gpus* for *jobs* from now on.

        *start_readings*: from when the counters had these values, shared by *members* jobs since.
        """
        self.sample()
        used_j: float | None = 0.0
        for gpu, start_j in zip(gpus, start_readings, strict=bool(start_readings)):
            now_j = self._last_j[gpu]
            if now_j is None or start_j is None or used_j is None:
                used_j = None
            else:
                used_j += max(now_j - start_j, 0.0) / members
        for job in jobs:
            self._used_j.setdefault(job, used_j)
            for gpu in gpus:
                self._occupants[gpu].append(job)

    def leave(self, job: str) -> float | None:
        """Remove a job from its GPUs and return the joules that it used; None: unmetered."""
        self.sample()
        for occupants in self._occupants.values():
            if job in occupants:
                occupants.remove(job)
        return self._used_j.pop(job, 0.0)

    # -- energy

    @property
    def method(self) -> str:
        """Name of the energy measurement."""
        return self.meter.gpus[0].method if self.meter.gpus else "unmetered"

    def readings(self, gpus: Iterable[int]) -> tuple[float | None, ...]:
        """Return the energy counters of *gpus* in joules; None: cannot be read."""
        return tuple(self._read_j(gpu) for gpu in gpus)

    def sample(self) -> None:
        """Read all counters, and add the energy since the last sample to the occupants."""
        for gpu, occupants in self._occupants.items():
            now_j, before_j = self._read_j(gpu), self._last_j[gpu]
            self._last_j[gpu] = now_j
            for job in occupants:
                used_j = self._used_j[job]
                if now_j is None or before_j is None or used_j is None:
                    self._used_j[job] = None
                else:
                    self._used_j[job] = used_j + max(now_j - before_j, 0.0) / len(occupants)

    def energy_j(self, job: str) -> float | None:
        """Return the joules of a job as of the last sample; None: unmetered."""
        return self._used_j.get(job, 0.0)

    def total_energy_j(self) -> float | None:
        """Return the joules of all GPUs since this was opened, as of the last sample; None: unmetered."""
        values = list(self._last_j.values())
        if None in values or self._first_j is None:
            return None
        return sum(v for v in values if v is not None) - self._first_j

    def power_w(self, gpus: Iterable[int]) -> float | None:
        """Return the power draw of *gpus* now; None: cannot be read."""
        try:
            return sum(self.meter.gpus[gpu].power_w() for gpu in gpus)
        except WattlineError:
            return None

    def _read_j(self, gpu: int) -> float | None:
        try:
            return self.meter.gpus[gpu].energy_j()
        except WattlineError:
            return None

    # -- power limits

    def set_cap(self, gpus: Iterable[int], watts: int) -> bool:
        """Set the power limit of *gpus*, within their range, or restore the original one (0).

        False: not permitted on some of them, which is logged once.
        """
        done = True
        for gpu in (self.meter.gpus[index] for index in gpus):
            if watts:
                done = self._set(gpu, watts) and done
            else:
                self._cap_guard.release(gpu)
        return done

    def _set(self, gpu: Gpu, watts: int) -> bool:
        self._cap_guard.observing.pop(gpu.uuid, None)  # the process that held its power limit may be gone
        low, high = gpu.cap_range_w()
        return self._cap_guard.set_cap(min(max(float(watts), low), high), gpu)
