"""Bayesian batch-size tuner: explores while a trial is expected to pay off, and stops when none is.

A run costs its epochs times the cost of an epoch, and both have a prior form over the batch size
(`wattline.batch_size.prior`). The value of a trial is the expected saving of later runs minus its extra cost
over the best known batch size. The loss against staying at the default is limited to about one run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from wattline.batch_size.bandit import BatchTrial, Outcome, TuningTask, remove_one
from wattline.batch_size.posterior import Posterior, compute_posterior
from wattline.batch_size.tuner_state import (
    DRIFT_RUNS,
    TunerState,
    add_run,
    add_stopped_run,
    is_started,
    put,
    restart_after_drift,
    update_outliers,
)
from wattline.core.table import Floats
from wattline.errors import ConfigError

REPEATS = (1, 3, 8)
"""Numbers of runs for which a trial is evaluated: with noisy runs a single one gives little information."""
BOUNDS = (1.0, 1.25, 1.5, 1.75, 2.0)
"""Costs at which a run may be stopped, relative to the best: from equal cost to twice it, as in Zeus."""
PATIENCE = 5.0  # recurrences within which a trial beyond the allowance must pay off
COST_OFFSET = 0.1  # of a run, added to each trial's extra cost when trials are ranked by value per cost
NEIGHBOUR_RUNS, NEIGHBOUR_COST, NEIGHBOUR_SHARE = 2, 0.3, 0.1
"""Because the prior forms are inexact, neighbours of the best are tried up to so many times.

Such a trial may cost that part of a run and that share of the remaining allowance.
"""


@dataclass(frozen=True, eq=False)
class TrialValues:
    """Value of a trial at each batch size: total, saving per later run, and extra cost over the best."""

    total_j: Floats
    saving_j: Floats
    extra_j: Floats
    stop_j: Floats  # cost at which such a trial should be stopped


@dataclass(frozen=True)
class BayesianTuner:
    """Chooses batch sizes by the cost of a trial and its savings over the *expected* remaining recurrences.

    *allowance* is the loss against staying at the default, in runs of the default, allowed beyond what was
    saved.
    """

    expected: float = 100.0
    allowance: float = 1.0

    def __post_init__(self) -> None:
        for name in ("expected", "allowance"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")

    def start(self, task: TuningTask, elsewhere: TunerState | None = None) -> TunerState:
        """Return an empty state, or one with the epochs of the same job on another kind of GPU."""
        zeros, unknown = np.zeros(len(task.batches)), np.full(len(task.batches), np.nan)
        state = TunerState(
            task, task.default, zeros, zeros, zeros, zeros, zeros, zeros, unknown, unknown, unknown
        )
        return state if elsewhere is None else _copy_epochs(state, elsewhere)

    def next(self, state: TunerState, rng: np.random.Generator) -> BatchTrial:
        """Return the trial with the highest value per cost, or the best known batch size if none pays off."""
        if not is_started(state):
            return BatchTrial(_first_batch(state))
        posterior = compute_posterior(state)
        pick = posterior.best if state.retries else self._choose(state, posterior)
        return BatchTrial(state.task.batches[pick], explores=pick != posterior.best)

    def explain(self, state: TunerState) -> str:
        """Return the reason for the result of `next` as text."""
        if not is_started(state):
            return "no run has ended yet on this kind of GPU"
        posterior = compute_posterior(state)
        if state.retries:
            return "the last run was stopped: the best known batch size follows"
        pick = self._choose(state, posterior)
        if pick == posterior.best:
            return "the best known batch size; no trial is worth its cost"
        values = self._value_trials(posterior)
        saving, extra = (100 * float(of[pick]) / posterior.best_j for of in (values.saving_j, values.extra_j))
        return (
            f"exploration: expected to cost {extra:.1f} % of a run once and to save {saving:.2f} % of each"
            " later run"
        )

    def epoch_limit(self, state: TunerState, trial: BatchTrial, epoch_j: float) -> int:
        """Return the epochs after which a restart at the best batch size is expected to be cheaper."""
        task = state.task
        if not is_started(state) or state.retries > 1:
            return task.max_epochs
        index = task.batches.index(trial.batch)
        first_measured = math.isnan(state.epoch_j[index])
        if first_measured:
            state = replace(state, epoch_j=put(state.epoch_j, index, epoch_j))
        posterior = compute_posterior(state)
        if not trial.explores:
            return _round_epochs(BOUNDS[-1] * posterior.best_j / epoch_j, task)
        values = self._value_trials(posterior)
        if first_measured and values.total_j[index] < -epoch_j:
            return 1  # the measured cost of an epoch shows that the trial does not pay off
        return _round_epochs(values.stop_j[index] / epoch_j, task)

    def start_trial(self, state: TunerState, trial: BatchTrial) -> TunerState:
        """Return the state with *trial* running, so that no concurrent run repeats it."""
        return replace(state, pending=(*state.pending, trial.batch))

    def observe(self, state: TunerState, outcome: Outcome) -> TunerState:
        """Return the state updated with *outcome*; epochs are forgotten when the data has drifted."""
        index = state.task.batches.index(outcome.batch)
        log_epochs = math.log(max(outcome.epochs, 1))
        outliers = update_outliers(state, index, log_epochs, outcome.reached)
        if outcome.epochs:
            state = replace(
                state,
                epoch_j=put(state.epoch_j, index, outcome.epoch_j),
                full_j=put(state.full_j, index, outcome.full_j),
                power=put(state.power, index, outcome.power),
            )
        state = replace(
            state,
            lost_j=state.lost_j + outcome.cost_j - outcome.reached * outcome.epochs * outcome.epoch_j,
            retries=0 if outcome.reached else state.retries + 1,
            outliers=outliers,
            pending=remove_one(state.pending, outcome.batch),
        )
        if len(outliers) >= DRIFT_RUNS:
            return restart_after_drift(state)
        return (add_run if outcome.reached else add_stopped_run)(state, index, log_epochs)

    def _choose(self, state: TunerState, posterior: Posterior) -> int:
        """Return the index of the batch size to run next."""
        values, allowed_j = self._value_trials(posterior), self._remaining_allowance_j(state, posterior)
        value = values.total_j.copy()
        value[(values.extra_j > allowed_j) & (PATIENCE * values.saving_j < values.extra_j)] = -np.inf
        for batch in state.pending:
            value[state.task.batches.index(batch)] = -np.inf
        value[posterior.best] = 0.0
        ratio = np.where(value > 0, value / (values.extra_j + COST_OFFSET * posterior.best_j), 0.0)
        pick = int(np.argmax(ratio))
        if value[pick] > 0:
            return pick
        return _choose_neighbour(
            state, posterior, values.extra_j, self._neighbour_limit_j(posterior, allowed_j)
        )

    def _neighbour_limit_j(self, posterior: Posterior, allowed_j: float) -> float:
        """Return the largest extra cost of trying a neighbour of the best batch size."""
        return min(
            NEIGHBOUR_SHARE * allowed_j,
            NEIGHBOUR_COST * posterior.best_j,
            NEIGHBOUR_SHARE * self.expected * posterior.best_j,
        )

    def _value_trials(self, posterior: Posterior) -> TrialValues:
        stop_j, cost_j = _choose_stops(posterior)
        extra_j = np.maximum(cost_j - posterior.best_j, 0.0)
        extra_j[posterior.best] = 0.0
        saving_j = posterior.best_j * _expected_improvement(posterior)
        saving_j = saving_j - saving_j[:, [posterior.best]]  # running the best gives its information for free
        total_j = (self.expected * saving_j - np.array(REPEATS)[:, None] * extra_j).max(axis=0)
        return TrialValues(total_j, saving_j[0], extra_j, stop_j)

    def _remaining_allowance_j(self, state: TunerState, posterior: Posterior) -> float:
        """Return the allowed loss against staying at the default at full power, less a run at the best."""
        default = state.task.batches.index(state.task.default)
        epochs, full_j = float(posterior.weight @ posterior.epochs[:, default]), float(state.full_j[default])
        if math.isnan(full_j):  # not run here: assume the same effect of power limits as at other batch sizes
            ratio = np.nanmax(state.full_j / state.epoch_j)
            full_j = float(posterior.mean_j[default]) / epochs * float(ratio)
        runs = np.maximum(state.runs, 1)
        run_j = np.exp(state.log_epochs_sum / runs + posterior.noise**2 / 2) * state.epoch_j
        spent_j = state.lost_j + float(state.local_runs @ np.where(state.local_runs > 0, run_j, 0.0))
        return (
            (float(state.local_runs.sum()) + self.allowance + 1) * epochs * full_j
            - spent_j
            - posterior.best_j
        )


def _first_batch(state: TunerState) -> int:
    default = state.task.default
    if state.stopped_runs[state.task.batches.index(default)] and not state.runs.any():
        raise ConfigError(f"the default batch size {default} did not reach the target")
    return state.first_batch


def _copy_epochs(state: TunerState, elsewhere: TunerState) -> TunerState:
    """Return *state* with the epochs of common batch sizes from *elsewhere*, starting at the best there."""
    common = [b for b in state.task.batches if b in elsewhere.task.batches]
    target = [state.task.batches.index(b) for b in common]
    source = [elsewhere.task.batches.index(b) for b in common]

    def copy(column: Floats) -> Floats:
        copied = np.zeros(len(state.task.batches))
        copied[target] = column[source]
        return copied

    first_batch = state.first_batch
    if is_started(elsewhere):
        best = elsewhere.task.batches[compute_posterior(elsewhere).best]
        first_batch = best if best in common else first_batch
    return replace(
        state,
        first_batch=first_batch,
        runs=copy(elsewhere.runs),
        log_epochs_sum=copy(elsewhere.log_epochs_sum),
        log_epochs_squares=copy(elsewhere.log_epochs_squares),
        stopped_runs=copy(elsewhere.stopped_runs),
        stopped_after=copy(elsewhere.stopped_after),
    )


def _choose_stops(posterior: Posterior) -> tuple[Floats, Floats]:
    """Return the best stopping cost of each batch size, and the expected cost with a rerun after a stop."""
    runs_j = posterior.cost_j * np.exp(posterior.noise * _unit_noise(posterior.cost_j.shape))
    best_j = posterior.best_j
    ends = [np.where(runs_j <= bound * best_j, runs_j, (bound + 1) * best_j) for bound in BOUNDS]
    cost_j = np.array([posterior.weight @ end for end in ends])
    chosen = np.argmin(cost_j, axis=0)
    return np.array(BOUNDS)[chosen] * best_j, cost_j[chosen, np.arange(len(chosen))]


@lru_cache(maxsize=64)
def _unit_noise(shape: tuple[int, ...]) -> Floats:
    """Return heavy-tailed draws with unit variance (Student's t with four degrees of freedom)."""
    return np.asarray(np.random.default_rng(1).standard_t(4, shape) / math.sqrt(2.0))


def _expected_improvement(posterior: Posterior) -> Floats:
    """Return the expected relative saving of a run after `REPEATS` (rows) runs at each batch size."""
    log = np.log(posterior.cost_j)
    best = log[:, [posterior.best]]
    excess = np.minimum(log - best, math.log(BOUNDS[-1]))  # runs are stopped there, so larger costs are equal
    own = excess + best
    own = own - posterior.weight @ own
    mean = posterior.weight @ excess
    weighted = posterior.weight[:, None] * own
    covariance = np.abs(
        (excess - mean).T @ weighted
    )  # row: possible new best, column: batch size that is run
    variance = (weighted * own).sum(axis=0)
    noise = posterior.noise**2 / np.array(REPEATS)[:, None, None]
    return np.asarray(
        _expected_positive_part(mean[:, None], covariance / np.sqrt(variance + noise)).max(axis=1)
    )


def _expected_positive_part(mean: Floats, spread: Floats) -> Floats:
    """Return E[max(0, −X)] of a normal X."""
    spread = np.maximum(spread, 1e-12)
    z = np.clip(mean / spread, -30, 30)
    return np.asarray(spread * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) - mean * ndtr(-z))


def _choose_neighbour(state: TunerState, posterior: Posterior, extra_j: Floats, limit_j: float) -> int:
    """Return a rarely tried neighbour of the best with an extra cost below *limit_j*, else the best."""
    near = [
        index
        for index in (posterior.best - 1, posterior.best + 1)
        if 0 <= index < len(extra_j)
        and state.runs[index] + state.stopped_runs[index] < NEIGHBOUR_RUNS
        and extra_j[index] < limit_j
        and state.task.batches[index] not in state.pending
    ]
    return min(near, key=lambda index: float(extra_j[index]), default=posterior.best)


def _round_epochs(epochs: float, task: TuningTask) -> int:
    """Return the epochs rounded up, because a started epoch is worth completing; 1 to *max_epochs*."""
    return int(min(max(math.ceil(epochs - 1e-9), 1), task.max_epochs))
