"""How fast a GPU is at a clock: part of a step follows the clock, part does not, and some clocks do not help.

    1 / rate(f) = fixed + work / g(f),   g(f) = softly the smaller of f and top

*fixed* waits for memory or the host and not for the SM clock; beyond *top* a higher clock is not reached, or
does not show. The rate never falls when the clock rises.
"""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats
from wattline.models.power.ramp import nonnegative_line

COEFFICIENTS = ("fixed", "work", "top", "soft")

_TOPS = np.concatenate((np.linspace(0.4, 1.0, 49), [2.0]))  # in units of the range of clocks; 2: out of reach
_SOFTS = np.array([0.005, 0.02, 0.06, 0.15])


def pace(clock_mhz: Floats, fixed: Floats, work: Floats, top: Floats, soft: Floats) -> Floats:
    """The rate at a clock; the coefficients broadcast against it."""
    return np.asarray(1.0 / (fixed + work / _reached(clock_mhz, top, soft)))


def fit_pace(clock_mhz: Floats, rate: Floats, noise: Floats) -> Floats:
    """The `COEFFICIENTS` with the least squared relative error; fewer than four clocks know no top."""
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
    fixed, work, error = nonnegative_line(1.0 / _reached(clock_mhz, tops, softs), 1.0 / rate, noise)
    best = int(np.argmin(error))
    return np.array([fixed[best], work[best], tops[best, 0], softs[best, 0]])


def _reached(clock_mhz: Floats, top: Floats, soft: Floats) -> Floats:
    apart = clock_mhz - top
    return np.asarray(0.5 * (clock_mhz + top - np.sqrt(apart * apart + soft * soft)))
