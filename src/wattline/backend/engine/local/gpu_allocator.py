"""Jobs on the GPUs of this machine, their energy, and the GPUs' power limits."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattline.errors import MeterError, WattlineError
from wattline.meter.caps.guard import CapGuard, guard_caps
from wattline.meter.caps.record import CAP_TOLERANCE_W
from wattline.meter.protocol import Gpu, Meter

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EnergySplit:
    """Joules of jobs at one moment, and how they share the GPUs from then on. Plain data, stored as JSON."""

    used_j: Mapping[str, float | None]  # by job; None: unknown
    gpus: Mapping[int, tuple[float | None, int]]  # counter at that moment, and number of jobs on the GPU

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {"used_j": dict(self.used_j), "gpus": [[gpu, *pair] for gpu, pair in self.gpus.items()]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EnergySplit:
        """Build a split from the output of `as_dict`."""
        return cls(dict(values["used_j"]), {gpu: (start_j, n) for gpu, start_j, n in values["gpus"]})


class GpuAllocator:
    """GPUs by index. The energy of a GPU is split equally between the jobs that occupy it.

    *state* is the folder in which changed power limits are recorded.
    """

    def __init__(self, meter: Meter, state: Path) -> None:
        self.meter = meter
        self._occupants: dict[int, list[str]] = {gpu: [] for gpu in range(len(meter.gpus))}
        self._last_j: dict[int, float | None] = {}  # the last value that could be read; None: none could
        self._unreadable: set[int] = set()
        for gpu in self._occupants:
            self._last_j[gpu] = self._read_j(gpu)
        self._first_j = dict(self._last_j)
        self._power_since: dict[int, tuple[float, float | None]] = {}  # time and counter, see `mean_power_w`
        self._used_j: dict[str, float] = {}
        self._incomplete: set[str] = set()  # jobs with energy that was not counted
        self._cap_guard: CapGuard = guard_caps(
            meter.gpus, state=state, warn=_logger.warning, take_over=True
        ).__enter__()

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

    def occupy(self, jobs: Sequence[str], gpus: Sequence[int], before: EnergySplit | None = None) -> None:
        """Count the energy of *gpus* for *jobs* from now on, or on from *before*."""
        self.sample()
        for job in jobs:
            if job not in self._used_j:
                self._used_j[job] = 0.0 if before is None else self._continue_from(before, job)
            if not self._unreadable.isdisjoint(gpus):
                self._incomplete.add(job)
            for gpu in gpus:
                self._occupants[gpu].append(job)

    def _continue_from(self, before: EnergySplit, job: str) -> float:
        """Return the joules of a job that earlier processes counted, and its share of those since."""
        used_j = before.used_j.get(job)
        complete = used_j is not None
        for gpu, (start_j, sharing) in before.gpus.items():
            now_j = self._last_j.get(gpu)
            if now_j is None or start_j is None or now_j < start_j:  # lost, or it counts from 0 again
                complete = False
            else:
                used_j = (used_j or 0.0) + (now_j - start_j) / max(sharing, 1)
        if not complete:
            self._incomplete.add(job)
        return used_j or 0.0

    def split(self, jobs: Iterable[str], gpus: Iterable[int]) -> EnergySplit:
        """Return the joules of *jobs* up to the last sample, and how they share *gpus* since."""
        used_j = {job: self.energy_j(job) for job in jobs}
        shares = {
            gpu: (None if gpu in self._unreadable else self._last_j[gpu], len(self._occupants[gpu]))
            for gpu in gpus
        }
        return EnergySplit(used_j, shares)

    def leave(self, job: str) -> float | None:
        """Remove a job from its GPUs and return the joules that it used; None: not all were counted."""
        self.sample()
        used_j = self.energy_j(job)
        for occupants in self._occupants.values():
            if job in occupants:
                occupants.remove(job)
        self._used_j.pop(job, None)
        self._incomplete.discard(job)
        return used_j

    # -- energy

    @property
    def method(self) -> str:
        """Name of the energy measurement."""
        return self.meter.gpus[0].method if self.meter.gpus else "unmetered"

    def sample(self) -> None:
        """Read all counters, and add the energy since the last sample to the occupants.

        A GPU that cannot be read for a while loses nothing, as counters go on, unless its occupants change.
        """
        for gpu, occupants in self._occupants.items():
            before_j, now_j = self._last_j[gpu], self._read_j(gpu)
            if now_j is None:
                continue
            self._last_j[gpu] = now_j
            for job in occupants:
                if before_j is None or now_j < before_j:
                    self._incomplete.add(job)
                else:
                    self._used_j[job] += (now_j - before_j) / len(occupants)

    def energy_j(self, job: str) -> float | None:
        """Return the joules of a job as of the last sample; None: unknown, as some were not counted."""
        if job in self._incomplete or any(job in self._occupants[gpu] for gpu in list(self._unreadable)):
            return None
        return self._used_j.get(job, 0.0)

    def counted_j(self, job: str) -> float:
        """Return the joules of a job that were counted: at least so many were used."""
        return self._used_j.get(job, 0.0)

    def total_energy_j(self) -> float | None:
        """Return the joules of all GPUs since this was opened, as of the last sample; None: unmetered.

        A GPU that cannot be read counts with its last value.
        """
        pairs = [(self._last_j[gpu], first_j) for gpu, first_j in self._first_j.items()]
        known = [last_j - first_j for last_j, first_j in pairs if last_j is not None and first_j is not None]
        return sum(known) if known else None

    def power_w(self, gpus: Iterable[int]) -> float | None:
        """Return the power draw of *gpus* now; None: cannot be read."""
        try:
            return sum(self.meter.gpus[gpu].power_w() for gpu in gpus)
        except WattlineError:
            return None

    def mean_power_w(self) -> dict[int, float | None]:
        """Return the mean power of every GPU since the last call, by its counter; at first the power now.

        Counters of simulated GPUs advance with their steps, and the power of one moment says little.
        """
        self.sample()
        now_s, means = self.meter.now_s(), dict[int, float | None]()
        for gpu in self._occupants:
            now_j = None if gpu in self._unreadable else self._last_j[gpu]
            since_s, since_j = self._power_since.get(gpu, (now_s, None))
            if now_j is None:
                means[gpu] = None
            elif since_j is None or not since_s < now_s or now_j < since_j:
                means[gpu] = self.power_w([gpu])
            else:
                means[gpu] = (now_j - since_j) / (now_s - since_s)
            self._power_since[gpu] = now_s, now_j
        return means

    def occupants(self, gpu: int) -> tuple[str, ...]:
        """Return the jobs on a GPU."""
        return tuple(self._occupants[gpu])

    def _read_j(self, gpu: int) -> float | None:
        try:
            value_j = self.meter.gpus[gpu].energy_j()
        except WattlineError:
            self._unreadable.add(gpu)
            return None
        self._unreadable.discard(gpu)
        return value_j

    # -- power limits

    def set_cap(self, gpus: Iterable[int], watts: int) -> bool:
        """Set the power limit of *gpus*, within their range, or restore the original one (0).

        False: some of them have another limit now, because it is not permitted or out of their range, which
        is logged once.
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
        self._cap_guard.set_cap(min(max(float(watts), low), high), gpu)
        return gpu.cap_w() < watts + CAP_TOLERANCE_W

    def cap_w(self, gpus: Iterable[int]) -> float | None:
        """Return the highest power limit of *gpus*, as the driver reports it; None: cannot be read."""
        try:
            return max(self.meter.gpus[gpu].cap_w() for gpu in gpus)
        except (WattlineError, ValueError):
            return None
