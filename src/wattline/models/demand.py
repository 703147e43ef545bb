"""What CPU cores and memory do to a job: the loader in front of the GPU.

Three stages work at the same time, and the slowest rules. Per sample and GPU they take

    step_s(b)/b                     the GPU (see `speed`)
    fixed + core_s / c              c cores per GPU prepare samples
    storage_s · max(0, 1 − m / D)   what the cache does not hold comes from storage, which is slower in
                                    proportion if it delivers less than when storage_s was measured

with a cache that never evicts (MinIO, CoorDL VLDB'21): of a data set of D GiB, m GiB of memory keep m/D,
so that share of every epoch hits. That is why the memory axis follows from the CPU axis (Synergy,
OSDI'22): only D and the storage bandwidth have to be known. Below *least_gib* the job itself, not its
cache, has too little memory, and it crawls.

Deviates: reading the cache costs nothing (it is an order of magnitude faster than storage).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.table import Floats
from wattline.errors import ConfigError

_BOUND = 0.95  # of the best speed: below it a stage other than the GPU rules, above it may be noise


@dataclass(frozen=True)
class Demand:
    """Seconds per sample of one GPU's loader; 0: that stage never rules.

    *dataset_gib* inf: no memory is ever enough for the cache to help. Below *least_gib* a sample takes
    *starved_s*. *read_mib_s* is what storage delivered to each GPU when *storage_s* was measured.
    """

    fixed_s: float = 0.0
    core_s: float = 0.0
    storage_s: float = 0.0
    dataset_gib: float = 0.0
    least_gib: float = 0.0
    starved_s: float = 0.0
    read_mib_s: float = 0.0  # 0: nobody said; storage as fast as then is taken for granted

    @property
    def ever_rules(self) -> bool:
        """Whether a job can have too little of the host at all."""
        return bool(self.fixed_s or self.core_s or self.storage_s or self.starved_s)

    @classmethod
    def derived(
        cls, cpus: Floats, samples_s: Floats, *, dataset_gib: float, sample_kib: float, storage_mib_s: float
    ) -> Demand:
        """The whole demand from speeds along the CPU axis only, with all memory given.

        *cpus* and *samples_s* are of one GPU; *storage_mib_s* is what one GPU may read.
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
        """Seconds per sample of one GPU's loader with so much per GPU; nan is "as much as it wants".

        *sharing* GPUs of the job on one node have one cache. *read_mib_s* nan is "as when measured".
        """
        # A maximum that leaves nan out: who has as many cores as it wants does not wait for them.
        cores_s = np.fmax(self.fixed_s + self.core_s / cpus, 0.0)
        if not (self.storage_s or self.starved_s):
            return cores_s
        return np.maximum(cores_s, self.memory_s(mem_gib, sharing, read_mib_s))

    def memory_s(
        self, mem_gib: Floats, sharing: Floats | float = 1.0, read_mib_s: Floats | float = math.nan
    ) -> Floats:
        """Seconds per sample that memory dictates: fetching what the cache misses, or crawling."""
        fetch_s = self.storage_s * self._missed(mem_gib * sharing)
        if self.read_mib_s:
            fetch_s = fetch_s * np.nan_to_num(self.read_mib_s / read_mib_s, nan=1.0)
        return np.where(mem_gib < self.least_gib, np.maximum(fetch_s, self.starved_s), fetch_s)

    def with_memory(self, samples_s: Floats, mem_gib: Floats) -> Floats:
        """Speed of one GPU with so much memory, from its measured speed with plenty: the memory axis."""
        slowest = np.maximum(1.0 / samples_s, self.memory_s(mem_gib))
        return np.asarray(1.0 / slowest)

    def scaled(self, factor: float) -> Demand:
        """The same loader, so many times as slow."""
        return replace(
            self,
            fixed_s=self.fixed_s * factor,
            core_s=self.core_s * factor,
            storage_s=self.storage_s * factor,
            starved_s=self.starved_s * factor,
        )

    def storage_mib_s(self, samples_s: Floats, mem_gib: Floats, sample_kib: float) -> Floats:
        """What one GPU reads from storage while it trains at *samples_s*."""
        return np.asarray(samples_s * self._missed(mem_gib) * sample_kib / 1024)

    def _missed(self, cache_gib: Floats) -> Floats:
        """Share of the samples that a cache of that size does not hold."""
        if not self.dataset_gib:
            return np.zeros(np.shape(cache_gib))
        return np.nan_to_num(np.maximum(1.0 - cache_gib / self.dataset_gib, 0.0))


def fit_demand(cpus: Floats, mem_gib: Floats, samples_s: Floats) -> Demand:
    """The demand of one GPU from speeds at *cpus* cores and *mem_gib* each; nan is "enough"."""
    enough = np.isnan(mem_gib)
    plenty = enough if enough.any() else mem_gib == mem_gib.max()
    fixed_s, core_s = _fit_cores(cpus[plenty], samples_s[plenty])
    # What the cores at hand would allow if memory were plentiful, as measured where it was.
    unlimited = _as_measured(cpus, cpus[plenty], samples_s[plenty])
    levels = np.unique(mem_gib[~plenty])
    fetch_s = np.array([_memory_s(samples_s[mem_gib == m], unlimited[mem_gib == m]) for m in levels])
    bound = ~np.isnan(fetch_s)
    if not bound.any():
        return Demand(fixed_s, core_s)
    # Where nobody says how much was enough, twice as much as was not is taken to be.
    free_gib = np.append(levels[~bound], 2.0 * levels.max() if enough.any() else mem_gib.max())
    storage_s, dataset_gib, crawls = _fit_cache(levels[bound], fetch_s[bound], free_gib, 1 / unlimited.max())
    if not crawls:
        return Demand(fixed_s, core_s, storage_s, dataset_gib)
    suffices = np.append(levels[bound][crawls:], free_gib[free_gib > levels[bound][crawls - 1]])
    starved_s = float(np.median(fetch_s[bound][:crawls]))
    return Demand(fixed_s, core_s, storage_s, dataset_gib, float(suffices.min()), starved_s)


def _memory_s(samples_s: Floats, unlimited: Floats) -> float:
    """Seconds per sample that one amount of memory dictates; nan where cores or the GPU rule."""
    most = samples_s.max()
    if most >= _BOUND * unlimited.max():
        return np.nan
    held_back = samples_s[unlimited >= most / _BOUND]
    return float(np.median(1.0 / held_back))


def _fit_cores(cpus: Floats, samples_s: Floats) -> tuple[float, float]:
    """fixed_s and core_s from the rows in which the cores rule."""
    rule = ~np.isnan(cpus) & (samples_s < _BOUND * samples_s.max())
    if not rule.any():
        return 0.0, 0.0
    y = 1.0 / samples_s[rule]
    if len(np.unique(cpus[rule])) == 1:
        return 0.0, float(np.mean(y * cpus[rule]))
    x = np.column_stack((np.ones(rule.sum()), 1.0 / cpus[rule])) / y[:, None]
    from scipy.optimize import nnls  # takes a while to import, and predicting does not need it

    fixed_s, core_s = nnls(x, np.ones(len(y)))[0].tolist()
    return fixed_s, core_s


def _as_measured(cpus: Floats, known_cpus: Floats, known: Floats) -> Floats:
    """Speed with plenty of memory at each of *cpus*, between the measured cores by straight lines."""
    many = 1e9  # as many cores as it wants
    places = np.nan_to_num(known_cpus, nan=many)
    order = np.argsort(places)
    rising = np.maximum.accumulate(known[order])
    return np.interp(np.nan_to_num(cpus, nan=many), places[order], rising)


def _fit_cache(levels: Floats, fetch_s: Floats, free_gib: Floats, least_s: float) -> tuple[float, float, int]:
    """storage_s, dataset_gib, and how many of the lowest *levels* of memory a cache does not explain.

    Fetching takes storage_s · (1 − m/D), a straight line in m that must go through what bound levels
    took, and be below *least_s* where more memory was measured to be enough. Levels far above it crawl.
    """
    enough_gib = float(free_gib[free_gib > levels.max()].min())
    for first in range(len(levels)):
        known_gib, known_s = levels[first:], fetch_s[first:]
        if len(known_gib) == 1:
            # The steepest line that is not contradicted: promises no more than was measured.
            known_gib, known_s = np.append(known_gib, enough_gib), np.append(known_s, least_s)
        slope, storage_s = np.polyfit(known_gib, known_s, 1, w=1.0 / known_s)
        if slope >= 0 or (fetch_s[:first] < _BOUND * (storage_s + slope * levels[:first])).any():
            continue
        through = np.allclose(storage_s + slope * known_gib, known_s, rtol=0.1)
        if through and storage_s + slope * enough_gib <= least_s / _BOUND:
            return float(storage_s), float(-storage_s / slope), first
    return 0.0, 0.0, len(levels)
