"""Speed limit that CPU cores, memory and storage of the host set to a job: its input pipeline.

Three stages work in parallel, and the slowest limits the job. Per sample and GPU they take

    step_s(b)/b                     the GPU (see `speed`)
    fixed + core_s / c              c cores per GPU prepare samples
    storage_s · max(0, 1 − m / D)   cache misses are read from storage; scaled in proportion where
                                    storage delivers less than when storage_s was measured

with a cache that never evicts (MinIO, CoorDL VLDB'21): of a data set of D GiB, m GiB of memory hold m/D,
and that share of every epoch hits. The memory axis therefore follows from the CPU axis (Synergy, OSDI'22):
only D and the storage bandwidth have to be known. Below *least_gib* the process itself, not its cache, has
too little memory, and a sample takes *starved_s*.

*Deviates:* reading the cache costs nothing (it is an order of magnitude faster than storage).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.table import Floats
from wattline.errors import ConfigError

_BOUND = 0.95  # of the best speed: below it a stage other than the GPU limits, above it may be noise


@dataclass(frozen=True)
class DemandModel:
    """Seconds per sample of one GPU's input pipeline; 0: that stage never limits.

    *dataset_gib* inf: no amount of memory makes the cache useful. Below *least_gib* a sample takes
    *starved_s*. *read_mib_s* is the storage bandwidth per GPU at which *storage_s* was measured.
    """

    fixed_s: float = 0.0
    core_s: float = 0.0
    storage_s: float = 0.0
    dataset_gib: float = 0.0
    least_gib: float = 0.0
    starved_s: float = 0.0
    read_mib_s: float = 0.0  # 0: unknown; the same bandwidth is assumed for every prediction

    @property
    def can_limit(self) -> bool:
        """True if some amount of host resources is too little for the job."""
        return bool(self.fixed_s or self.core_s or self.storage_s or self.starved_s)

    @classmethod
    def from_core_sweep(
        cls, cpus: Floats, samples_s: Floats, *, dataset_gib: float, sample_kib: float, storage_mib_s: float
    ) -> DemandModel:
        """Derive the demand from speeds along the CPU axis, measured with all memory available.

        *cpus* and *samples_s* are per GPU; *storage_mib_s* is the storage bandwidth of one GPU.
        """
        for name, value in (("dataset_gib", dataset_gib), ("sample_kib", sample_kib)):
            if not 0 < value < np.inf:
                raise ConfigError(f"{name} is {value}, expected a finite number above 0")
        if not storage_mib_s > 0:
            raise ConfigError(f"storage_mib_s is {storage_mib_s}, expected a number above 0")
        fixed_s, core_s = _fit_cores(cpus, samples_s)
        read_mib_s = storage_mib_s if math.isfinite(storage_mib_s) else 0.0
        return cls(fixed_s, core_s, sample_kib / 1024 / storage_mib_s, dataset_gib, read_mib_s=read_mib_s)

    def sample_s(
        self,
        cpus: Floats,
        mem_gib: Floats,
        sharing: Floats | float = 1.0,
        read_mib_s: Floats | float = math.nan,
    ) -> Floats:
        """Return the seconds per sample of one GPU's input pipeline with these resources per GPU.

        nan cores or memory: unlimited. *sharing* GPUs of the job on one node share one cache. *read_mib_s*
        nan: the bandwidth of the measurement.
        """
        # fmax ignores nan: with unlimited cores the job never waits for them.
        cores_s = np.fmax(self.fixed_s + self.core_s / cpus, 0.0)
        if not (self.storage_s or self.starved_s):
            return cores_s
        return np.maximum(cores_s, self.memory_s(mem_gib, sharing, read_mib_s))

    def memory_s(
        self, mem_gib: Floats, sharing: Floats | float = 1.0, read_mib_s: Floats | float = math.nan
    ) -> Floats:
        """Return the seconds per sample limited by memory: reading cache misses, or *starved_s*."""
        fetch_s = self.storage_s * self._miss_rate(mem_gib * sharing)
        if self.read_mib_s:
            fetch_s = fetch_s * np.nan_to_num(self.read_mib_s / read_mib_s, nan=1.0)
        return np.where(mem_gib < self.least_gib, np.maximum(fetch_s, self.starved_s), fetch_s)

    def speed_with_memory(self, samples_s: Floats, mem_gib: Floats) -> Floats:
        """Return the speed of one GPU with *mem_gib*, from its measured speed with unlimited memory."""
        slowest = np.maximum(1.0 / samples_s, self.memory_s(mem_gib))
        return np.asarray(1.0 / slowest)

    def scale(self, factor: float) -> DemandModel:
        """Return a copy in which every stage takes *factor* times as long."""
        return replace(
            self,
            fixed_s=self.fixed_s * factor,
            core_s=self.core_s * factor,
            storage_s=self.storage_s * factor,
            starved_s=self.starved_s * factor,
        )

    def storage_mib_s(self, samples_s: Floats, mem_gib: Floats, sample_kib: float) -> Floats:
        """Return the MiB/s that one GPU reads from storage while it trains at *samples_s*."""
        return np.asarray(samples_s * self._miss_rate(mem_gib) * sample_kib / 1024)

    def _miss_rate(self, cache_gib: Floats) -> Floats:
        """Return the miss rate of a cache of that size."""
        if not self.dataset_gib:
            return np.zeros(np.shape(cache_gib))
        return np.nan_to_num(np.maximum(1.0 - cache_gib / self.dataset_gib, 0.0))


def fit_demand(cpus: Floats, mem_gib: Floats, samples_s: Floats) -> DemandModel:
    """Fit the demand of one GPU to speeds at *cpus* cores and *mem_gib* of memory; nan: unlimited."""
    enough = np.isnan(mem_gib)
    plenty = enough if enough.any() else mem_gib == mem_gib.max()
    fixed_s, core_s = _fit_cores(cpus[plenty], samples_s[plenty])
    # The speed these cores allow with plenty of memory, interpolated from the rows that had it.
    unlimited = _interpolate_speed(cpus, cpus[plenty], samples_s[plenty])
    levels = np.unique(mem_gib[~plenty])
    fetch_s = np.array([_fit_memory_s(samples_s[mem_gib == m], unlimited[mem_gib == m]) for m in levels])
    bound = ~np.isnan(fetch_s)
    if not bound.any():
        return DemandModel(fixed_s, core_s)
    # Without a measurement of a sufficient amount, assume twice the largest insufficient one.
    free_gib = np.append(levels[~bound], 2.0 * levels.max() if enough.any() else mem_gib.max())
    storage_s, dataset_gib, starved = _fit_cache(levels[bound], fetch_s[bound], free_gib, 1 / unlimited.max())
    if not starved:
        return DemandModel(fixed_s, core_s, storage_s, dataset_gib)
    suffices = np.append(levels[bound][starved:], free_gib[free_gib > levels[bound][starved - 1]])
    starved_s = float(np.median(fetch_s[bound][:starved]))
    return DemandModel(fixed_s, core_s, storage_s, dataset_gib, float(suffices.min()), starved_s)


def _fit_memory_s(samples_s: Floats, unlimited: Floats) -> float:
    """Return the seconds per sample at one memory level; nan where cores or the GPU are the limit."""
    most = samples_s.max()
    if most >= _BOUND * unlimited.max():
        return np.nan
    held_back = samples_s[unlimited >= most / _BOUND]
    return float(np.median(1.0 / held_back))


def _fit_cores(cpus: Floats, samples_s: Floats) -> tuple[float, float]:
    """Fit fixed_s and core_s to the rows in which cores are the limit."""
    limited = ~np.isnan(cpus) & (samples_s < _BOUND * samples_s.max())
    if not limited.any():
        return 0.0, 0.0
    y = 1.0 / samples_s[limited]
    if len(np.unique(cpus[limited])) == 1:
        return 0.0, float(np.mean(y * cpus[limited]))
    x = np.column_stack((np.ones(limited.sum()), 1.0 / cpus[limited])) / y[:, None]
    from scipy.optimize import nnls  # slow to import and not needed for predictions

    fixed_s, core_s = nnls(x, np.ones(len(y)))[0].tolist()
    return fixed_s, core_s


def _interpolate_speed(cpus: Floats, known_cpus: Floats, known: Floats) -> Floats:
    """Interpolate the speed with plenty of memory at each of *cpus* linearly."""
    many = 1e9  # stands for unlimited cores
    places = np.nan_to_num(known_cpus, nan=many)
    order = np.argsort(places)
    rising = np.maximum.accumulate(known[order])
    return np.interp(np.nan_to_num(cpus, nan=many), places[order], rising)


def _fit_cache(levels: Floats, fetch_s: Floats, free_gib: Floats, least_s: float) -> tuple[float, float, int]:
    """Fit storage_s and dataset_gib; also return how many of the lowest *levels* a cache does not explain.

    Reading takes storage_s · (1 − m/D), a straight line in m that must pass through the times of the
    memory-bound levels and be below *least_s* where more memory was measured to be enough. Levels far above
    that line are taken as starved.
    """
    enough_gib = float(free_gib[free_gib > levels.max()].min())
    for first in range(len(levels)):
        known_gib, known_s = levels[first:], fetch_s[first:]
        if len(known_gib) == 1:
            # The steepest line that agrees with both points: it predicts no more than was measured.
            known_gib, known_s = np.append(known_gib, enough_gib), np.append(known_s, least_s)
        slope, storage_s = np.polyfit(known_gib, known_s, 1, w=1.0 / known_s)
        if slope >= 0 or (fetch_s[:first] < _BOUND * (storage_s + slope * levels[:first])).any():
            continue
        through = np.allclose(storage_s + slope * known_gib, known_s, rtol=0.1)
        if through and storage_s + slope * enough_gib <= least_s / _BOUND:
            return float(storage_s), float(-storage_s / slope), first
    return 0.0, 0.0, len(levels)
