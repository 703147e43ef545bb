"""Power of a GPU against its clock: dynamic power with a voltage floor below a knee.

    watts(f) = still + per_mhz · f · V(f)²,   V(f) = 1 + rise · max(0, f − knee)

*still* is the static power in watts. Dynamic power is C·V²·f. Below *knee* (MHz) the voltage is at its floor
and power is linear in the clock, so a lower clock saves no energy per step; above it the voltage rises with
the clock. The cheapest clock of a job lies at or near the knee.
"""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats
from wattline.models.power.soft_ramp import fit_nonnegative_line

COEFFICIENTS = ("still", "per_mhz", "knee", "rise")

_KNEES = np.linspace(0.0, 0.95, 39)  # in units of the measured range of clocks
_RISES = np.concatenate(([0.0], np.geomspace(0.2, 4.0, 31)))  # per largest clock
_FINER = np.linspace(-1.0, 1.0, 13)  # refines between the neighbours of the best grid point


def clock_watts(clock_mhz: Floats, still: Floats, per_mhz: Floats, knee: Floats, rise: Floats) -> Floats:
    """Return the watts at *clock_mhz*; the coefficients broadcast against it."""
    voltage = 1.0 + rise * np.maximum(clock_mhz - knee, 0.0)
    return np.asarray(still + per_mhz * clock_mhz * voltage * voltage)


def fit_clock_watts(
    clock_mhz: Floats, watts: Floats, noise: Floats, shape: tuple[float, float] | None = None
) -> Floats:
    """Fit the `COEFFICIENTS` with the least squared relative error; fewer than four clocks give a line.

    *shape* is the knee and the rise, if they are known: they belong to the GPU, not to the job.
    """
    first, largest = clock_mhz.min(), clock_mhz.max()
    few = len(np.unique(clock_mhz)) < 4
    if shape is not None:
        basis = clock_watts(clock_mhz, np.zeros(1), np.ones(1), np.full((1, 1), shape[0]), np.array(shape[1]))
        still, per_mhz, _ = fit_nonnegative_line(basis, watts, noise)
        return np.array([still[0], per_mhz[0], *shape])
    if few:
        return _fit_grid(clock_mhz, watts, noise, np.full(1, first), np.zeros(1))
    knees, rises = first + (largest - first) * _KNEES, _RISES / largest
    coarse = _fit_grid(clock_mhz, watts, noise, knees, rises)
    step, factor = knees[1] - knees[0], _RISES[2] / _RISES[1]
    return _fit_grid(clock_mhz, watts, noise, coarse[2] + step * _FINER, coarse[3] * factor**_FINER)


def _fit_grid(clock_mhz: Floats, watts: Floats, noise: Floats, knees: Floats, rises: Floats) -> Floats:
    """Fit the coefficients over a grid of knees and rises."""
    knee, rise = (column.reshape(-1, 1) for column in np.meshgrid(knees, rises, indexing="ij"))
    basis = clock_watts(clock_mhz, np.zeros(1), np.ones(1), knee, rise)
    still, per_mhz, error = fit_nonnegative_line(basis, watts, noise)
    best = int(np.argmin(error))
    return np.array([still[best], per_mhz[best], knee[best, 0], rise[best, 0]])
