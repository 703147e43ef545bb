"""Posterior distribution of the cost of a run at each batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from wattline.batch_size.prior import busy_log_likelihood, draw_prior, sample_posterior
from wattline.batch_size.tuner_state import TunerState, run_noise, run_variance
from wattline.core.table import Floats

_NEVER_ENDS = 3.0  # log epochs added to draws beyond max_epochs, so that they are far too expensive
_EXACT = 1e-6  # variance of the log cost of an epoch, which is measured without noise


@dataclass(frozen=True, eq=False)
class Posterior:
    """Weighted draws (rows) of epochs and cost of a run at each batch size, and their mean cost."""

    epochs: Floats
    cost_j: Floats
    weight: Floats
    noise: float
    mean_j: Floats
    best: int  # index of the cheapest batch size that has reached the target

    @property
    def best_j(self) -> float:
        """Expected cost of a run at the best batch size."""
        return float(self.mean_j[self.best])


@lru_cache(maxsize=16)
def compute_posterior(state: TunerState) -> Posterior:
    """Return the posterior of *state*; cached by the identity of the state."""
    task = state.task
    prior = draw_prior(task.batches, task.default)
    noise, runs = run_noise(state), np.maximum(state.runs, 1)
    mean_log = np.where(state.runs > 0, state.log_epochs_sum / runs, np.nan)
    log_epochs = sample_posterior(
        prior.log_epochs, prior.epochs_cov, prior.epochs_normals, mean_log, run_variance(state) / runs
    )
    weight = _weigh_by_stopped_runs(log_epochs, state, noise)
    log_epoch_j = _draw_epoch_costs(
        task.batches, task.default, _cache_key(state.epoch_j), _cache_key(state.power)
    )
    limit = math.log(task.max_epochs)
    log_epochs = np.where(log_epochs > limit, limit + _NEVER_ENDS, log_epochs)
    cost_j = np.exp(log_epochs + log_epoch_j + noise**2 / 2)
    mean_j = weight @ cost_j
    best = int(np.argmin(np.where(state.runs > 0, mean_j, np.inf)))
    return Posterior(np.exp(log_epochs), cost_j, weight, noise, mean_j, best)


def _weigh_by_stopped_runs(log_epochs: Floats, state: TunerState, noise: float) -> Floats:
    """Return the weights of draws by the likelihood that stopped runs had not reached the target by then."""
    stopped = np.flatnonzero(state.stopped_runs)
    later = (log_epochs[:, stopped] - state.stopped_after[stopped]) / noise
    log_likelihood = np.log(1e-6 + ndtr(later)) @ state.stopped_runs[stopped]
    weight = np.exp(log_likelihood - log_likelihood.max())
    return np.asarray(weight / weight.sum())


@lru_cache(maxsize=1024)
def _draw_epoch_costs(
    batches: tuple[int, ...], default: int, epoch_j: tuple[float, ...], power: tuple[float, ...]
) -> Floats:
    prior = draw_prior(batches, default)
    known_j, known_power = (np.where(np.array(column) > 0, column, np.nan) for column in (epoch_j, power))
    extra = busy_log_likelihood(prior, known_power) if any(power) else None
    variance = np.full(len(known_j), _EXACT)
    return sample_posterior(
        prior.log_epoch_j, prior.epoch_cov, prior.epoch_normals, np.log(known_j), variance, extra
    )


def _cache_key(column: Floats) -> tuple[float, ...]:
    """Return a hashable key with 0 for nan, which never equals itself."""
    return tuple(np.where(np.isnan(column), 0.0, column).tolist())
