"""What a GPU draws at a clock: switching power, with a voltage that stops falling below a knee.

    watts(f) = still + per_mhz · f · V(f)²,   V(f) = 1 + rise · max(0, f − knee)

Dynamic power is C·V²·f. Below the knee the voltage is at its floor and watts are a straight line, so a
lower clock only stretches the work; above it the voltage climbs with the clock. The cheapest clock of a
job lies at the knee or near it.
"""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats
from wattline.models.power.ramp import nonnegative_line

COEFFICIENTS = ("still", "per_mhz", "knee", "rise")

_KNEES = np.linspace(0.0, 0.95, 39)  # in units of the range of clocks that was measured
_RISES = np.concatenate(([0.0], np.geomspace(0.2, 4.0, 31)))  # per largest clock
_FINER = np.linspace(-1.0, 1.0, 13)  # between the neighbours of the best of these


def clock_watts(clock_mhz: Floats, still: Floats, per_mhz: Floats, knee: Floats, rise: Floats) -> Floats:
    """Watts at a clock; the coefficients broadcast against it."""
    volts = 1.0 + rise * np.maximum(clock_mhz - knee, 0.0)
    return np.asarray(still + per_mhz * clock_mhz * volts * volts)


def fit_volts(
    clock_mhz: Floats, watts: Floats, noise: Floats, shape: tuple[float, float] | None = None
) -> Floats:
    """The `COEFFICIENTS` with the least squared relative error; fewer than four clocks give a line.

    *shape* is the knee and the rise where they are known already: they are the chip's, not the job's.
    """
    first, largest = clock_mhz.min(), clock_mhz.max()
    few = len(np.unique(clock_mhz)) < 4
    if shape is not None:
        basis = clock_watts(clock_mhz, np.zeros(1), np.ones(1), np.full((1, 1), shape[0]), np.array(shape[1]))
        still, per_mhz, _ = nonnegative_line(basis, watts, noise)
        return np.array([still[0], per_mhz[0], *shape])
    if few:
        return _best(clock_mhz, watts, noise, np.full(1, first), np.zeros(1))
    knees, rises = first + (largest - first) * _KNEES, _RISES / largest
    near = _best(clock_mhz, watts, noise, knees, rises)
    step, factor = knees[1] - knees[0], _RISES[2] / _RISES[1]
    return _best(clock_mhz, watts, noise, near[2] + step * _FINER, near[3] * factor**_FINER)


def _best(clock_mhz: Floats, watts: Floats, noise: Floats, knees: Floats, rises: Floats) -> Floats:
    """The coefficients with the best of these knees and rises."""
    knee, rise = (column.reshape(-1, 1) for column in np.meshgrid(knees, rises, indexing="ij"))
    basis = clock_watts(clock_mhz, np.zeros(1), np.ones(1), knee, rise)
    still, per_mhz, error = nonnegative_line(basis, watts, noise)
    best = int(np.argmin(error))
    return np.array([still[best], per_mhz[best], knee[best, 0], rise[best, 0]])
