"""Soft ramp from a floor to a ceiling: watts and speed of a GPU against its power cap.

    y(x) = low + slope · (soft⁺(x − start) − soft⁺(x − end)),   soft⁺(z) = (z + √(z² + soft²)) / 2

Below *start* a lower cap has no effect, because the GPU has reached its lowest clock; above *end* the job
draws less than the cap. In between the cap limits it, and because a job's kernels differ in power, neither
corner is sharp. y never falls as x rises.
"""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats

COEFFICIENTS = ("low", "slope", "start", "end", "soft")

# Grid of corners and softness, in units of the measured range of x.
_STARTS = np.array([-0.3, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
_ENDS = np.linspace(0.1, 1.5, 29)
_SOFTS = np.array([0.05, 0.1, 0.2, 0.4, 0.6])
_LATE_START = 0.01  # penalty on a floor inside the range: relative error it must explain, per whole range


def soft_ramp(x: Floats, low: Floats, slope: Floats, start: Floats, end: Floats, soft: Floats) -> Floats:
    """Return y at *x*; the coefficients broadcast against it."""
    soft2 = soft * soft
    from_start, from_end = x - start, x - end
    rise = end - start + np.sqrt(from_start * from_start + soft2) - np.sqrt(from_end * from_end + soft2)
    return np.asarray(low + (0.5 * slope) * rise)


def fit_soft_ramp(x: Floats, y: Floats, noise: Floats) -> Floats:
    """Fit the `COEFFICIENTS` with the least squared error relative to *y* and its relative *noise*.

    Corners come from a grid, so that the result is deterministic and does not depend on a starting point;
    low and slope are least squares in closed form. Two values of x give the straight line between them.
    """
    first, span = x.min(), np.ptp(x)
    if span == 0.0:
        return np.array([np.average(y, weights=1 / (noise * y) ** 2), 0.0, first, first + 1.0, 1.0])
    few = len(np.unique(x)) < 3
    starts, ends, softs = (
        column.reshape(-1, 1)
        for column in np.meshgrid(
            first + span * (np.zeros(1) if few else _STARTS),
            first + span * (np.ones(1) if few else _ENDS),
            span * (_SOFTS[:1] if few else _SOFTS),
            indexing="ij",
        )
    )
    late = starts < ends - 0.05 * span
    starts, ends, softs = starts[late][:, None], ends[late][:, None], softs[late][:, None]
    low, slope, error = fit_nonnegative_line(
        soft_ramp(x, np.zeros(1), np.ones(1), starts, ends, softs), y, noise
    )
    error += np.mean(noise) ** -2 * (_LATE_START * np.maximum((starts[:, 0] - first) / span + 0.3, 0.0)) ** 2
    best = int(np.argmin(error))
    return np.array([low[best], slope[best], starts[best, 0], ends[best, 0], softs[best, 0]])


def fit_nonnegative_line(basis: Floats, y: Floats, noise: Floats) -> tuple[Floats, Floats, Floats]:
    """Fit y ≈ low + slope·b with low, slope ≥ 0 for each row b of *basis*; return low, slope, mean error²."""
    weight = 1.0 / (noise * y) ** 2
    total, sum_y = weight.sum(), float(weight @ y)
    sum_b, sum_bb, sum_by = basis @ weight, (basis * basis) @ weight, basis @ (weight * y)
    spread = total * sum_bb - sum_b * sum_b
    flat = spread <= 1e-12 * total * sum_bb
    slope = np.maximum(np.where(flat, 0.0, total * sum_by - sum_b * sum_y) / np.where(flat, 1.0, spread), 0.0)
    low = (sum_y - slope * sum_b) / total
    below = low < 0.0
    slope = np.where(below, sum_by / np.where(sum_bb > 0.0, sum_bb, 1.0), slope)
    low = np.where(below, 0.0, low)
    misses = low[:, None] + slope[:, None] * basis - y
    return low, slope, np.asarray((misses * misses) @ weight / len(y))
