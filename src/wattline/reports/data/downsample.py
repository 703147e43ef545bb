"""Downsampling of curves and distributions for plots."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats, Ints


def downsample(at_s: Floats, value: Floats, points: int) -> Ints:
    """Return at most *points* row numbers of a step function that preserve its shape.

    Time is cut into equal bins; the first, lowest, highest and last value of each bin stay. A plot
    with no more columns of pixels than bins looks the same.
    """
    if len(at_s) <= points:
        return np.arange(len(at_s), dtype=np.int64)
    bins = max(1, points // 4)
    edges = np.linspace(at_s[0], at_s[-1], bins + 1)[1:-1]
    starts = np.concatenate(([0], np.searchsorted(at_s, edges), [len(at_s)]))
    keep: list[int] = []
    for low, high in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if high > low:
            part = value[low:high]
            keep += (low, low + int(part.argmin()), low + int(part.argmax()), high - 1)
    return np.unique(np.array(keep, dtype=np.int64))


def sample_quantiles(values: Floats, points: int) -> Floats:
    """Return *values* in ascending order; of more than *points*, that many evenly spaced with both ends."""
    ordered = np.sort(values)
    if len(ordered) <= points:
        return ordered
    return ordered[np.round(np.linspace(0, len(ordered) - 1, points)).astype(np.int64)]
