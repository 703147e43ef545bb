"""Intervals of the ratio of two schedules: a bootstrap over blocks of time, or over seeds, always paired."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Bools, Floats
from wattline.reports.seed_means import Estimate, estimate_mean
from wattline.whatif.digest import Blocks, ScheduleDigest

_DRAWS = 2000
_LEVEL = 95.0


class Ratio(Estimate):
    """A figure of one schedule over that of another, with a 95 % interval; nan: unknown."""


def compare_jct(
    ours: ScheduleDigest, theirs: ScheduleDigest, jobs: Jobs, counted: Bools, blocks: Blocks
) -> Ratio:
    """Return the mean JCT of *ours* over that of *theirs*, of the counted jobs that ended in both."""
    both = counted & np.isfinite(ours.end_s) & np.isfinite(theirs.end_s)
    if not both.any():
        return Ratio(math.nan)
    block = blocks.number(jobs.submit_s[both]).astype(np.int64)
    sums = [
        np.bincount(block, (digest.end_s - jobs.submit_s)[both], len(blocks)).astype(np.float64)
        for digest in (ours, theirs)
    ]
    return bootstrap_ratio(sums[0], sums[1])


def compare_energy(ours: ScheduleDigest, theirs: ScheduleDigest) -> Ratio:
    """Return the energy of *ours* over that of *theirs*."""
    return bootstrap_ratio(ours.energy_j, theirs.energy_j)


def bootstrap_ratio(ours: Floats, theirs: Floats) -> Ratio:
    """Return the ratio of two sums over blocks, and its interval by drawing blocks with replacement.

    The same blocks are drawn for both sums, so that a busy week is busy in both (paired). Blocks are drawn
    whole, because the jobs of one block wait for each other (block bootstrap, Künsch 1989; the blocks here
    do not overlap).
    """
    total = float(theirs.sum())
    value = float(ours.sum()) / total if total > 0 else math.nan
    if len(ours) < 2 or not math.isfinite(value):
        return Ratio(value)
    drawn = np.random.default_rng(0).integers(0, len(ours), (_DRAWS, len(ours)))
    below = theirs[drawn].sum(axis=1)
    ratios = ours[drawn].sum(axis=1)[below > 0] / below[below > 0]
    low, high = np.percentile(ratios, ((100 - _LEVEL) / 2, (100 + _LEVEL) / 2)).tolist()
    return Ratio(value, low, high)


def average_seeds(ratios: Sequence[Ratio]) -> Ratio:
    """Return the mean of the ratios of several seeds, and its 95 % interval by Student's t.

    With one seed, or with equal values, the interval of the first is returned: seeds then add nothing.
    """
    values = [ratio.value for ratio in ratios]
    if len(values) < 2 or not all(map(math.isfinite, values)) or len(set(values)) == 1:
        return ratios[0]
    mean = estimate_mean(values)
    return Ratio(mean.value, mean.low, mean.high)
