"""Remaining times and draws of jobs by number of GPUs and power cap, compiled."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import F1, F3, FLOAT, I1, I2, kernel


@kernel(I2, I1, F3, F3, I1, F1, I1, I1, FLOAT)
def compute_times_and_draws(
    sizes: Ints,
    size_count: Ints,
    speed: Floats,
    watts: Floats,
    row: Ints,
    work_s: Floats,
    wanted: Ints,
    level: Ints,
    idle_w: float,
) -> tuple[Floats, Floats]:
    """Return remaining time and draw beyond that of idle GPUs, by job and (number of GPUs, level of cap).

    *sizes* and *size_count* are by job, *speed* and *watts* by job class (*row* of a job), size and level.
    Times are inf and draws 0 where a job has no such configuration.
    """
    jobs, levels = len(row), len(level)
    left_s = np.full((jobs, len(wanted) * levels), np.inf)
    more_w = np.zeros((jobs, len(wanted) * levels))
    for j in range(jobs):
        for k in range(len(wanted)):
            for at in range(size_count[j]):
                if sizes[j, at] != wanted[k]:
                    continue
                for a in range(levels):
                    faster = speed[row[j], at, level[a]]
                    if faster > 0:
                        left_s[j, k * levels + a] = work_s[j] / faster
                        more = watts[row[j], at, level[a]] - wanted[k] * idle_w
                        more_w[j, k * levels + a] = max(more, 0.0)
                break
    return left_s, more_w
