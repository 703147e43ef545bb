"""Result of `wattline profile` as text and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wattline.cli.models.profile_dataset import DatasetSize
from wattline.cli.models.profile_state import ProfileHeader, derive_demand
from wattline.cli.models.workload_data import finite_or_none
from wattline.cli.output import print_table
from wattline.models.demand import DemandModel
from wattline.profiler.core_sweep import MEMORY_SHARES, CoreSweep, SpeedPoint, interpolate_speed

ENOUGH = 0.98
"""Part of the best speed at which cores and memory are taken to be enough."""

_STUDENT_95 = 2.26


@dataclass(frozen=True)
class ProfileResult:
    """A finished sweep over cores, with the memory axis derived from *dataset* if there is one."""

    header: ProfileHeader
    sweep: CoreSweep
    points: list[SpeedPoint]
    dataset: DatasetSize | None
    limited_by: str
    out: str

    @property
    def speeds(self) -> dict[float, float]:
        """Samples per second by number of cores."""
        return {p.cpus: p.samples_s for p in self.points}

    @property
    def demand(self) -> DemandModel | None:
        """Demand of one GPU; None without a data set."""
        return derive_demand(self.header["gpus"], self.points, self.dataset)

    @property
    def cells(self) -> int:
        """Number of measurements of the whole matrix of cores and memory."""
        return len(self.sweep.grid) * len(MEMORY_SHARES)

    def predict_with_memory(self, samples_s: float, mem_gib: float) -> float:
        """Return the samples per second of the whole job, which shares one cache on its node."""
        gpus, demand = self.header["gpus"], self.demand
        assert demand is not None
        return float(demand.speed_with_memory(np.array([samples_s / gpus]), np.array([mem_gib]))[0] * gpus)

    def find_enough(self) -> tuple[float, float | None]:
        """Return the fewest cores, then the least GiB of memory, that reach `ENOUGH` of the best speed."""
        cores = np.array(self.sweep.grid)
        speeds = interpolate_speed(self.speeds, cores)
        best = float(speeds.max())
        cpus = float(cores[0] if self.sweep.is_flat(self.speeds) else cores[speeds >= ENOUGH * best][0])
        if self.dataset is None:
            return cpus, None
        full_speed = float(interpolate_speed(self.speeds, np.array([cpus]))[0])
        levels_gib = (percent / 100 * self.dataset.dataset_gib for percent in range(101))
        return cpus, next(
            gib for gib in levels_gib if self.predict_with_memory(full_speed, gib) >= ENOUGH * full_speed
        )

    def encode(self) -> dict[str, Any]:
        """Return the result as JSON."""
        cpus, mem_gib = self.find_enough()
        return {
            **self.header,
            "out": self.out,
            "limited_by": self.limited_by,
            "measured": [
                {
                    "cpus": p.cpus,
                    "samples_s": p.samples_s,
                    "stderr": finite_or_none(p.stderr),
                    "steps": p.steps,
                }
                for p in sorted(self.points)
            ],
            "derived": [
                {"cpus": p.cpus, "mem_gib": gib, "samples_s": self.predict_with_memory(p.samples_s, gib)}
                for p in sorted(self.points)
                for gib in self._list_memory_levels()
            ],
            "data": asdict(self.dataset) if self.dataset else None,
            "flat": self.sweep.is_flat(self.speeds),
            "enough": {"cpus": cpus, "mem_gib": mem_gib},
            "cost": {"points": len(self.points), "cells": self.cells},
        }

    def _list_memory_levels(self) -> list[float]:
        return [share * self.dataset.dataset_gib for share in MEMORY_SHARES] if self.dataset else []

    def print_text(self) -> None:
        """Print the result as text."""
        h = self.header
        gpus = f"{h['gpus']} GPU{'' if h['gpus'] == 1 else 's'}"
        counts = f"{len(self.points)} of {len(self.sweep.grid)} core counts measured"
        print(f"{h['model']} on {h['gpu']}, {gpus}: {counts}, limited by {self.limited_by}")
        levels = self._list_memory_levels()
        columns = ["cores", "samples/s", "±", *(f"{gib:.3g} GiB" for gib in levels)]
        rows = []
        for p in sorted(self.points):
            derived = [f"{self.predict_with_memory(p.samples_s, gib):.4g}" for gib in levels]
            rows.append([f"{p.cpus:g}", f"{p.samples_s:.4g}", _format_error(p), *derived])
        print_table(columns, rows, right=columns)
        print("\n".join(self._list_notes(columns)))

    def _list_notes(self, columns: list[str]) -> list[str]:
        lines = []
        if self.dataset is not None:
            lines += [
                f"samples/s is measured with all memory; {columns[3]} to {columns[-1]} are derived: a cache"
                f" keeps its share of {self.dataset.dataset_gib:.4g} GiB,",
                f"the rest is read at {self.dataset.storage_mib_s:.4g} MiB/s,"
                f" {self.dataset.sample_kib:.4g} KiB a sample",
            ]
        if self.header["batch"] == 1:
            lines.append("a sample is a step: add --batch if a step has more")
        saving = f"{self.cells / len(self.points):.3g} times less work"
        return [
            *lines,
            self._describe_enough(),
            f"{len(self.points)} measurements instead of {self.cells}: {saving}",
            f"table: {self.out} (for wattline fit)",
        ]

    def _describe_enough(self) -> str:
        cpus, mem_gib = self.find_enough()
        memory = "" if mem_gib is None else f" and {mem_gib:.3g} GiB for the cache"
        if len(self.sweep.grid) == 1:
            return f"only {format_cores(cpus)} could be tried: the effect of more is unknown"
        if self.sweep.is_flat(self.speeds):
            verb = "is" if cpus == 1 and not memory else "are"
            return f"its speed does not depend on cores: {format_cores(cpus)}{memory} {verb} enough"
        if cpus == self.sweep.grid[-1]:
            return f"it uses all {format_cores(cpus)}{memory}, and might use more"
        return f"{format_cores(cpus)}{memory} are enough: {100 * ENOUGH:.0f} % of its best speed"


def format_cores(cpus: float) -> str:
    """Return `1 core`, `2 cores`."""
    return f"{cpus:g} core{'' if cpus == 1 else 's'}"


def format_speed(p: SpeedPoint) -> str:
    """Return the speed of a point with half of its 95 % interval."""
    return f"{p.samples_s:.4g} samples/s ± {_format_error(p)}"


def _format_error(p: SpeedPoint) -> str:
    return f"{100 * _STUDENT_95 * p.stderr / p.samples_s:.1f} %" if math.isfinite(p.stderr) else "?"
