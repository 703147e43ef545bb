"""Which runs no other one beats in both energy and mean JCT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattline.reports.summary import Report


def front(reports: Sequence[Report]) -> tuple[bool, ...]:
    """For each run whether it is on the Pareto front; a run without energy or JCT never is."""
    energy_j = np.array([r.energy_j for r in reports], dtype=np.float64)
    jct_s = np.array([r.jct_mean_s for r in reports], dtype=np.float64)
    known = np.isfinite(energy_j) & np.isfinite(jct_s)
    no_worse = (energy_j[:, None] <= energy_j) & (jct_s[:, None] <= jct_s)  # row against column
    better = no_worse & ((energy_j[:, None] < energy_j) | (jct_s[:, None] < jct_s))
    return tuple((known & ~better[known].any(axis=0)).tolist())
