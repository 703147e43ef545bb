"""Pareto front of runs in energy and mean JCT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattline.reports.summary import Report


def mark_pareto_front(reports: Sequence[Report]) -> tuple[bool, ...]:
    """Return for each run if no other run beats it in both figures; False where energy or JCT is nan."""
    energy_j = np.array([r.energy_j for r in reports], dtype=np.float64)
    jct_s = np.array([r.jct_mean_s for r in reports], dtype=np.float64)
    known = np.isfinite(energy_j) & np.isfinite(jct_s)
    no_worse = (energy_j[:, None] <= energy_j) & (jct_s[:, None] <= jct_s)  # row against column
    better = no_worse & ((energy_j[:, None] < energy_j) | (jct_s[:, None] < jct_s))
    return tuple((known & ~better[known].any(axis=0)).tolist())
