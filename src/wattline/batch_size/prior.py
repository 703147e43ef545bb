"""Prior over batch sizes of the epochs to the target and of the cost of an epoch.

Both are smooth in the logarithm of the batch size and have a known form. Epochs have a minimum: a batch far
above the gradient noise scale wastes samples, finally in proportion to it; a tiny one is unstable. The cost
of an epoch has a part per sample and a part per step, so it falls with larger batches up to a point. The
parameters of these forms are unknown: the prior is a set of draws of them, weighted by the observations, each
with a Gaussian process as a smooth residual that follows the measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wattline.core.table import Floats

DRAWS = 256
LEVEL_STD = 10.0  # standard deviation of the log scale: epochs and their cost are unknown up to e^±10
LENGTH_SCALE = 1.5  # length scale of residuals in octaves: neighbours at a factor of two are similar
EPOCHS_OWN_STD, EPOCH_OWN_STD = 0.10, 0.05  # independent deviation of a batch size from its neighbours
EPOCHS_STD, EPOCH_STD = 0.15, 0.07  # residual standard deviation of epochs and of the cost of an epoch
MIDDLE, MIDDLE_STD = -2.5, 3.0
"""Octaves from the default to the middle of the batch sizes that need the fewest epochs.

A default is chosen for speed, as large as the GPU and the training allow: a larger batch size wastes samples
sooner than a smaller one is unstable.
"""
IDLE_POWER, BUSY_POWER = 0.2, 0.9  # typical power of an idle and a busy GPU, as a share of the largest
BUSY_STD = 0.25  # standard deviation of that estimate
TREND_STD = 0.10  # standard deviation of a residual trend per octave


@dataclass(frozen=True, eq=False)
class PriorDraws:
    """Draws of the prior forms: draws in rows, batch sizes in columns, in natural logarithms."""

    log_epochs: Floats
    log_epoch_j: Floats
    busy: Floats  # share of an epoch spent on samples, not a logarithm
    epochs_cov: Floats
    epoch_cov: Floats
    epochs_normals: Floats  # standard normal draws for the residuals
    epoch_normals: Floats
    uniforms: Floats  # uniform draws for the share of normal runs


@lru_cache(maxsize=256)
def draw_prior(batches: tuple[int, ...], default: int) -> PriorDraws:
    """Draw the prior for these batch sizes: scale-free, centred on the default."""
    rng = np.random.default_rng(0)
    x = np.log2(np.array(batches, np.float64) / default)
    column = (DRAWS, 1)
    middle, half = MIDDLE + MIDDLE_STD * rng.standard_normal(column), rng.uniform(0, 4, column)
    large, small = rng.uniform(0.5, 1.5, column), rng.uniform(0.5, 4.0, column)
    epochs = large * _softplus2(x - (middle + half)) + _softplus2(small * (middle - half - x))
    half = rng.uniform(-5, 5, column)
    epoch, busy = _softplus2(half - x), 1 / (1 + 2 ** (half - x))
    first, second = rng.standard_normal((2, DRAWS, len(x)))
    return PriorDraws(
        epochs,
        epoch,
        busy,
        _residual_covariance(x, EPOCHS_STD, EPOCHS_OWN_STD),
        _residual_covariance(x, EPOCH_STD, EPOCH_OWN_STD),
        first,
        second,
        np.stack([rng.permutation((np.arange(DRAWS) + 0.5) / DRAWS) for _ in batches], axis=1),
    )


def _softplus2(octaves: Floats) -> Floats:
    """Return log(1 + 2^octaves): flat, then linear."""
    return np.asarray(np.logaddexp(0.0, octaves * math.log(2)))


def _residual_covariance(x: Floats, residual: float, own: float) -> Floats:
    apart = x[:, None] - x[None, :]
    smooth = residual**2 * np.exp(-0.5 * (apart / LENGTH_SCALE) ** 2) + TREND_STD**2 * x[:, None] * x[None, :]
    return np.asarray(LEVEL_STD**2 + smooth + own**2 * np.eye(len(x)))


def busy_log_likelihood(prior: PriorDraws, power: Floats) -> Floats:
    """Return the log likelihood of each form given *power*, a share of the largest (nan: not observed).

    A GPU that waits between steps draws little more than an idle one.
    """
    known = np.flatnonzero(~np.isnan(power))
    busy = np.clip((power[known] - IDLE_POWER) / (BUSY_POWER - IDLE_POWER), 0.0, 1.0)
    residual = (prior.busy[:, known] - busy) / BUSY_STD
    return np.asarray(-0.5 * (residual**2).mean(axis=1))
