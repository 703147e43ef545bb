"""What is believed of a training over its batch size: epochs to the target, and the cost of an epoch.

Both are smooth in the logarithm of the batch size and have a known form. Epochs lie in a valley: a batch far
above the noise of the gradient wastes samples, in proportion in the end; a tiny one is unstable. An epoch
takes a share for each sample and one for each step, and so less with larger batches, up to a point. Where the
valley is and when steps stop to matter is unknown: beliefs are draws of these forms, weighed by what was
seen, each with a smooth remainder that follows the measurements (a Gaussian process).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wattline.core.table import Floats

DRAWS = 256
LEVEL = 10.0  # nobody knows how many epochs a job takes, nor what one costs: e^±10
SMOOTH = 1.5  # octaves over which remainders change: neighbours at a factor of two are alike
OWN = 0.05  # by which a batch size differs from its neighbours for no reason
EPOCHS_OFF, EPOCH_OFF = 0.10, 0.07  # how far epochs and epochs' costs are from their forms
DEGREES = 4.0  # how well the scale of all that is known beforehand: tails as of so many measurements
IDLE, BUSY = 0.2, 0.9  # what GPUs draw of their largest power when idle and when busy, about
BUSY_OFF = 0.25  # and how far off that is
TILT = 0.10  # and by how much more or less with each octave


@dataclass(frozen=True, eq=False)
class Grid:
    """The forms on these batch sizes: draws in rows, batch sizes in columns, all in natural logarithms."""

    epochs: Floats
    epoch: Floats
    busy: Floats  # the share of an epoch that goes into samples, not a logarithm
    epochs_cov: Floats
    epoch_cov: Floats
    first: Floats  # standard normal draws, for the remainders
    second: Floats


@lru_cache(maxsize=256)
def grid(batches: tuple[int, ...], default: int) -> Grid:
    """What is believed before anything ran: scale-free, around the default."""
    rng = np.random.default_rng(0)
    x = np.log2(np.array(batches, np.float64) / default)
    column = (DRAWS, 1)
    middle, half = 3.0 * rng.standard_normal(column), rng.uniform(0, 4, column)
    large, small = rng.uniform(0.5, 1.5, column), rng.uniform(0.5, 4.0, column)
    epochs = large * _rise(x - (middle + half)) + _rise(small * (middle - half - x))
    half = rng.uniform(-5, 5, column)
    epoch, busy = _rise(half - x), 1 / (1 + 2 ** (half - x))
    first, second = rng.standard_normal((2, DRAWS, len(x)))
    return Grid(epochs, epoch, busy, _covariance(x, EPOCHS_OFF), _covariance(x, EPOCH_OFF), first, second)


def _rise(octaves: Floats) -> Floats:
    """log(1 + 2^octaves): nothing, then in proportion."""
    return np.asarray(np.logaddexp(0.0, octaves * math.log(2)))


def _covariance(x: Floats, off: float) -> Floats:
    apart = x[:, None] - x[None, :]
    smooth = off**2 * np.exp(-0.5 * (apart / SMOOTH) ** 2) + TILT**2 * x[:, None] * x[None, :]
    return np.asarray(LEVEL**2 + smooth + OWN**2 * np.eye(len(x)))


def draws(
    form: Floats,
    covariance: Floats,
    normals: Floats,
    seen: Floats,
    variance: Floats,
    prior: Floats | None = None,
) -> Floats:
    """Draws of the curve after *seen* (nan: not) with the *variance* of each: forms that fit, and remainders.

    *prior*: logarithms of what else speaks for each form. Weights and remainders have Student's tails.
    """
    known = np.flatnonzero(~np.isnan(seen))
    across = covariance[:, known]
    inner = covariance[np.ix_(known, known)]
    inner.flat[:: len(known) + 1] += variance[known]
    inverse = np.linalg.inv(inner)
    off = seen[known] - form[:, known]
    pulled = off @ inverse
    misfit = (pulled * off).sum(axis=1)
    weight = -0.5 * (DEGREES + len(known)) * np.log1p(misfit / DEGREES)
    if prior is not None:
        weight = weight + prior
    weight = np.exp(weight - weight.max())
    sums = np.cumsum(weight)
    rows = np.searchsorted(sums, (np.arange(DRAWS) + 0.5) * (sums[-1] / DRAWS))
    left = covariance - across @ inverse @ across.T
    left.flat[:: len(left) + 1] += 1e-8
    root = np.linalg.cholesky(left)
    scale = np.sqrt(np.maximum((DEGREES + misfit[rows]) / (DEGREES + len(known)), 1.0))
    return np.asarray(form[rows] + pulled[rows] @ across.T + (normals * scale[:, None]) @ root.T)


def looks_busy(grid_: Grid, power: Floats) -> Floats:
    """How well each form agrees with the *power* drawn, a share of the largest (nan: not seen); a logarithm.

    A GPU that waits between steps draws little more than when idle.
    """
    known = np.flatnonzero(~np.isnan(power))
    busy = np.clip((power[known] - IDLE) / (BUSY - IDLE), 0.0, 1.0)
    off = (grid_.busy[:, known] - busy) / BUSY_OFF
    return np.asarray(-0.5 * (off**2).mean(axis=1))
