"""Which GPUs of this machine are whose, what they have used, and which caps they have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from wattline.errors import MeterError, WattlineError
from wattline.meter.caps.guard import Hold, hold
from wattline.meter.protocol import Gpu, Meter


class Seats:
    """The GPUs by their number. Who takes some has them until they are given back.

    Energy of a GPU goes in equal parts to those who sit on it; without a meter nobody is told a number.
    """

    def __init__(self, meter: Meter, state: Path, tell: Callable[[str], None]) -> None:
        self.meter = meter
        self._taken: dict[int, list[str]] = {gpu: [] for gpu in range(len(meter.gpus))}
        self._last_j: dict[int, float | None] = {gpu: self._read_j(gpu) for gpu in self._taken}
        self._used_j: dict[str, float | None] = {}
        first = list(self._last_j.values())
        self._first_j = None if None in first else sum(v for v in first if v is not None)
        self._hold: Hold = hold(meter.gpus, state=state, tell=tell).__enter__()

    def close(self) -> None:
        """Put back the caps and let go of the meter."""
        self._hold.__exit__(None, None, None)
        self.meter.close()

    # -- who sits where

    def choose(self, count: int, among: Sequence[int], given: Collection[int]) -> tuple[int, ...]:
        """So many of these that are not *given* to anybody: neighbours from an even place if there are, else
        the first. Somebody who is leaving may still sit there.
        """
        free = [gpu for gpu in among if gpu not in given]
        if len(free) < count:
            raise MeterError(f"{count} GPUs are to be used, and {len(free)} are free")
        block = 1 << (count - 1).bit_length()
        there = set(free)
        for first in range(min(among, default=0), max(among, default=0) + 1):
            run = tuple(range(first, first + count))
            if (first - among[0]) % block == 0 and there.issuperset(run):
                return run
        return tuple(free[:count])

    def readings(self, gpus: Iterable[int]) -> tuple[float | None, ...]:
        """The counters of these, to be given to `take` by who finds the jobs again."""
        return tuple(self._read_j(gpu) for gpu in gpus)

    def take(
        self,
        jobs: Sequence[str],
        gpus: Sequence[int],
        since: Sequence[float | None] | None = None,
        among: int = 1,
    ) -> None:
        """These jobs sit on these GPUs from now on, or since counters were at *since*, *among* so many."""
        self.settle()
        used_j: float | None = 0.0
        for gpu, then_j in zip(gpus, since or (), strict=bool(since)):
            now_j = self._last_j[gpu]
            missing = now_j is None or then_j is None or used_j is None
            used_j = None if missing else used_j + max(now_j - then_j, 0.0) / among  # type: ignore[operator]
        for job in jobs:
            self._used_j.setdefault(job, used_j)
            for gpu in gpus:
                self._taken[gpu].append(job)

    def leave(self, job: str) -> float | None:
        """A job gives back what it has; answers the joules that it used, None: unmetered."""
        self.settle()
        for sitting in self._taken.values():
            if job in sitting:
                sitting.remove(job)
        return self._used_j.pop(job, 0.0)

    # -- energy

    @property
    def method(self) -> str:
        """How joules are known."""
        return self.meter.gpus[0].method if self.meter.gpus else "unmetered"

    def settle(self) -> None:
        """Count what was used since the last time."""
        for gpu, sitting in self._taken.items():
            now_j, before_j = self._read_j(gpu), self._last_j[gpu]
            self._last_j[gpu] = now_j
            for job in sitting:
                used_j = self._used_j[job]
                if now_j is None or before_j is None or used_j is None:
                    self._used_j[job] = None
                else:
                    self._used_j[job] = used_j + max(now_j - before_j, 0.0) / len(sitting)

    def used_j(self, job: str) -> float | None:
        """What a job that sits here has used so far; see `settle`."""
        return self._used_j.get(job, 0.0)

    def since_j(self) -> float | None:
        """All GPUs together since we began, as last read; None: some cannot be."""
        values = list(self._last_j.values())
        if None in values or self._first_j is None:
            return None
        return sum(v for v in values if v is not None) - self._first_j

    def watts(self, gpus: Iterable[int]) -> float | None:
        """What these draw now; None: nobody knows."""
        try:
            return sum(self.meter.gpus[gpu].power_w() for gpu in gpus)
        except WattlineError:
            return None

    def _read_j(self, gpu: int) -> float | None:
        try:
            return self.meter.gpus[gpu].energy_j()
        except WattlineError:
            return None

    # -- caps

    def cap(self, gpus: Iterable[int], watts: int) -> None:
        """Set the cap of these, or put back what it was (0); who may not is told once."""
        for gpu in (self.meter.gpus[number] for number in gpus):
            if watts:
                self._set(gpu, watts)
            else:
                self._hold.release(gpu)

    def _set(self, gpu: Gpu, watts: int) -> None:
        self._hold.observing.pop(gpu.uuid, None)  # whoever held it may be gone
        low, high = gpu.cap_range_w()
        self._hold.set_cap(min(max(float(watts), low), high), gpu)
