"""Speed of a GPU against its clock: a part that scales with the clock, a part that does not, a ceiling.

    1 / rate(f) = fixed + work / g(f),   g(f) = soft minimum of f and top

*fixed* is bound by memory or the host and not by the SM clock; above *top* (MHz) a higher clock is not
reached or has no effect. The rate never falls as the clock rises.
"""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats
from wattline.models.power.soft_ramp import fit_nonnegative_line

COEFFICIENTS = ("fixed", "work", "top", "soft")

_TOPS = np.concatenate(
    (np.linspace(0.4, 1.0, 49), [2.0])
)  # in units of the measured range of clocks; 2: no ceiling in range
_SOFTS = np.array([0.005, 0.02, 0.06, 0.15])


def clock_rate(clock_mhz: Floats, fixed: Floats, work: Floats, top: Floats, soft: Floats) -> Floats:
    """Return the rate at *clock_mhz*; the coefficients broadcast against it."""
    return np.asarray(1.0 / (fixed + work / _soft_minimum(clock_mhz, top, soft)))


def fit_clock_rate(clock_mhz: Floats, rate: Floats, noise: Floats) -> Floats:
    """Fit the `COEFFICIENTS` with the least squared relative error; under four clocks give no ceiling."""
    first, span = clock_mhz.min(), np.ptp(clock_mhz)
    few = len(np.unique(clock_mhz)) < 4
    tops, softs = (
        column.reshape(-1, 1)
        for column in np.meshgrid(
            first + span * (_TOPS[-1:] if few else _TOPS),
            span * (_SOFTS[:1] if few else _SOFTS),
            indexing="ij",
        )
    )
    fixed, work, error = fit_nonnegative_line(1.0 / _soft_minimum(clock_mhz, tops, softs), 1.0 / rate, noise)
    best = int(np.argmin(error))
    return np.array([fixed[best], work[best], tops[best, 0], softs[best, 0]])


def _soft_minimum(clock_mhz: Floats, top: Floats, soft: Floats) -> Floats:
    apart = clock_mhz - top
    return np.asarray(0.5 * (clock_mhz + top - np.sqrt(apart * apart + soft * soft)))
