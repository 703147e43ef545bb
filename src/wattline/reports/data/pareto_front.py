"""Pareto front of runs in energy and mean JCT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class EnergyAndJct(Protocol):
    """Figures of a run of which less is better."""

    @property
    def energy_j(self) -> float:
        """Energy of the cluster."""
        ...

    @property
    def jct_mean_s(self) -> float:
        """Mean JCT."""
        ...


def mark_pareto_front(reports: Sequence[EnergyAndJct]) -> tuple[bool, ...]:
    """Return for each run if no other run beats it in both figures; False where energy or JCT is nan."""
    energy_j = np.array([r.energy_j for r in reports], dtype=np.float64)
    jct_s = np.array([r.jct_mean_s for r in reports], dtype=np.float64)
    known = np.isfinite(energy_j) & np.isfinite(jct_s)
    no_worse = (energy_j[:, None] <= energy_j) & (jct_s[:, None] <= jct_s)  # row against column
    better = no_worse & ((energy_j[:, None] < energy_j) | (jct_s[:, None] < jct_s))
    return tuple((known & ~better[known].any(axis=0)).tolist())
