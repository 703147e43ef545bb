"""Posterior distribution of the cost of a run at each batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wattline.batch_size.curves import price_batches, sample_posterior, weigh_failures
from wattline.batch_size.prior import DRAWS, busy_log_likelihood, draw_prior
from wattline.batch_size.tuner_state import TunerState, run_noise, run_variance
from wattline.core.table import Floats

_NEVER_ENDS = 3.0  # log epochs added to draws beyond max_epochs, so that they are far too expensive
_NO_LOG_PRIOR = np.zeros(DRAWS)
_EXACT = 1e-6  # variance of the log cost of an epoch, which is measured without noise
STOP = 2.0  # cost at which a run at the best batch size is stopped, relative to the best, as in Zeus
SURE = 0.9  # prior probability that the only failures of a batch size are runs longer than their limit
_SHARES = np.concatenate((np.arange(0.05, 1.0, 0.1), [1.0]))
_SHARE_PRIOR = np.concatenate((np.full(10, (1 - SURE) / 10), [SURE]))
"""Possible probabilities that a run at a batch size is a normal one, which reaches the target in the end."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """Weighted draws (rows) of epochs and cost at each batch size, and the expected cost to the target.

    *normal* is the probability that a run is a normal one, which costs *run_j* and reaches the target; the
    others never do. *epochs* are those of all runs until one reaches the target. *cost_j* is the cost of a
    recurrence that begins with a run at this batch size and is repeated at the best one if that run fails.
    """

    epochs: Floats
    normal: Floats
    epoch_j: Floats  # mean cost of an epoch
    run_j: Floats
    cost_j: Floats
    weight: Floats
    noise: float
    mean_j: Floats
    best: int  # index of the cheapest batch size that has reached the target

    @property
    def best_j(self) -> float:
        """Expected cost of a recurrence at the best batch size, with the runs that fail."""
        return float(self.mean_j[self.best])


@lru_cache(maxsize=16)
def compute_posterior(state: TunerState) -> Posterior:
    """Return the posterior of *state*; cached by the identity of the state."""
    task = state.task
    prior = draw_prior(task.batches, task.default)
    noise, runs = run_noise(state), np.maximum(state.runs, 1)
    mean_log = np.where(state.runs > 0, state.log_epochs_sum / runs, np.nan)
    variance = run_variance(state)
    log_epochs = sample_posterior(
        prior.log_epochs, prior.epochs_cov, prior.epochs_normals, mean_log, variance / runs, _NO_LOG_PRIOR
    )
    stops = sorted(state.stops)
    weight, normal = weigh_failures(
        log_epochs,
        state.runs,
        np.array([index for index, _ in stops], np.int64),
        np.array([at for _, at in stops], np.float64),
        np.full(len(runs), noise),
        _SHARES,
        _SHARE_PRIOR,
        prior.uniforms,
    )
    log_epoch_j = _draw_epoch_costs(
        task.batches, task.default, _cache_key(state.epoch_j), _cache_key(state.power)
    )
    limit = math.log(task.max_epochs)
    normal = np.where(log_epochs > limit, 0.0, normal)
    log_epochs = np.where(log_epochs > limit, limit + _NEVER_ENDS, log_epochs)
    run_j = np.exp(log_epochs + log_epoch_j + variance / 2)
    epoch_j = weight @ np.exp(log_epoch_j)
    cost_j, mean_j, best = price_batches(run_j, normal, task.max_epochs * epoch_j, weight, state.runs, STOP)
    epochs = np.exp(log_epochs) / np.maximum(normal, _SHARES[0])
    return Posterior(epochs, normal, epoch_j, run_j, cost_j, weight, noise, mean_j, best)


@lru_cache(maxsize=1024)
def _draw_epoch_costs(
    batches: tuple[int, ...], default: int, epoch_j: tuple[float, ...], power: tuple[float, ...]
) -> Floats:
    prior = draw_prior(batches, default)
    known_j, known_power = (np.where(np.array(column) > 0, column, np.nan) for column in (epoch_j, power))
    extra = busy_log_likelihood(prior, known_power) if any(power) else _NO_LOG_PRIOR
    variance = np.full(len(known_j), _EXACT)
    return sample_posterior(
        prior.log_epoch_j, prior.epoch_cov, prior.epoch_normals, np.log(known_j), variance, extra
    )


def _cache_key(column: Floats) -> tuple[float, ...]:
    """Return a hashable key with 0 for nan, which never equals itself."""
    return tuple(np.where(np.isnan(column), 0.0, column).tolist())
