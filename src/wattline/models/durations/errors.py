"""Errors of estimated durations, each made before its job ran."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wattline.core.table import Floats


@dataclass(frozen=True)
class EstimateErrors:
    """Errors of estimates against the durations that followed; nan without any.

    An estimate uses only jobs that ended before, so these are errors on jobs it had not seen.
    """

    count: int
    median_factor: float  # exp of the median |log(estimate / duration)|: 2 means half or double
    within_factor_2: float  # share
    too_short: float  # share of the estimates below the duration

    def __str__(self) -> str:
        if not self.count:
            return "no estimate was made"
        return (
            f"off by a factor of {self.median_factor:.2g} in the median, {100 * self.within_factor_2:.0f} %"
            f" within a factor of 2, {100 * self.too_short:.0f} % too short ({self.count:,} jobs)"
        )


def measure_errors(estimate_s: Floats, duration_s: Floats) -> EstimateErrors:
    """Compare estimates with durations; jobs without an estimate, or that took no time, do not count."""
    counts = np.isfinite(estimate_s) & (estimate_s > 0) & (duration_s > 0)
    if not counts.any():
        return EstimateErrors(0, math.nan, math.nan, math.nan)
    estimate_s, duration_s = estimate_s[counts], duration_s[counts]
    off = np.abs(np.log(estimate_s / duration_s))
    return EstimateErrors(
        count=len(off),
        median_factor=float(np.exp(np.median(off))),
        within_factor_2=float((off <= math.log(2.0) + 1e-12).mean()),
        too_short=float((estimate_s < duration_s * (1 - 1e-9)).mean()),
    )
