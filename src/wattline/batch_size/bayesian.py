"""Bayesian batch-size tuner: explores while a trial is expected to pay off, and stops when none is.

A run costs its epochs times the cost of an epoch, and both have a prior form over the batch size
(`wattline.batch_size.prior`). A batch size is priced by what a recurrence costs until it reaches the target,
runs that fail included. The value of a trial is the expected saving of later runs minus its extra cost over
the best known batch size. The loss against staying at the default is limited to about one run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from wattline.batch_size.bandit import BatchTrial, Outcome, TuningTask, remove_one
from wattline.batch_size.curves import choose_stops, expect_improvement
from wattline.batch_size.posterior import STOP, Posterior, compute_posterior
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

REPEATS = np.array((1.0, 3.0, 8.0))
"""Numbers of runs for which a trial is evaluated: with noisy runs a single one gives little information."""
BOUNDS = np.array((1.0, 1.25, 1.5, 1.75, STOP))
"""Costs at which a trial may be stopped, relative to the best: from equal cost to twice it, as in Zeus."""
FIRST_RECURRENCES = 20.0  # expected of a new job; later as many more as there were
COST_OFFSET = 0.5  # of a run, added to each trial's extra cost when trials are ranked by value per cost
RISK = 3.0  # cost at which a trial is stopped, at most, relative to the remaining allowance
NEIGHBOUR_RUNS, NEIGHBOUR_COST, NEIGHBOUR_SHARE = 2, 0.3, 0.1
"""Because the prior forms are inexact, neighbours of the best are tried up to so many times.

Such a trial may cost that part of a run and that share of the remaining allowance.
"""
TRIES = 2  # at each batch size, before a job that never reached its target is given up


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

    *expected* None: unknown, as many as there were so far, and 20 more. *allowance* is the loss against
    staying at the default, in runs of the default, allowed beyond what was saved.
    """

    expected: float | None = None
    allowance: float = 0.9

    def __post_init__(self) -> None:
        for name in ("expected", "allowance"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {value}")

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
        pick, explores = self._choose(state, compute_posterior(state))
        return BatchTrial(state.task.batches[pick], explores)

    def explain(self, state: TunerState) -> str:
        """Return the reason for the result of `next` as text."""
        if not is_started(state):
            if state.stopped_runs.any():
                return "no run has reached the target yet: the nearest batch size that was tried least"
            return "no run has ended yet on this kind of GPU"
        posterior = compute_posterior(state)
        pick, explores = self._choose(state, posterior)
        if state.retries:
            return "the last run was stopped: the best known batch size follows"
        if pick != posterior.best and not explores:
            return "the default: no other batch size is surely cheaper, and no more may be lost"
        if not explores:
            return "the best known batch size; no trial is worth its cost"
        values = self._value_trials(state, posterior)
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
            stop_j = STOP * max(posterior.best_j, float(posterior.mean_j[index]))
            return _limit_epochs(stop_j / epoch_j, task)
        values = self._value_trials(state, posterior)
        if first_measured and values.total_j[index] < -epoch_j:
            return 1  # the measured cost of an epoch shows that the trial does not pay off
        return _limit_epochs(float(values.stop_j[index]) / epoch_j, task)

    def start_trial(self, state: TunerState, trial: BatchTrial) -> TunerState:
        """Return the state with *trial* running, so that no concurrent run repeats it."""
        return replace(state, pending=(*state.pending, trial.batch))

    def observe(self, state: TunerState, outcome: Outcome) -> TunerState:
        """Return the state updated with *outcome*; epochs are forgotten when the data has drifted.

        A run without epochs failed for good: it would not have reached the target in *max_epochs*.
        """
        index = state.task.batches.index(outcome.batch)
        log_epochs = math.log(outcome.epochs or state.task.max_epochs)
        outliers = state.outliers
        if outcome.epochs:
            outliers = update_outliers(state, index, log_epochs, outcome.reached)
            sweep = outcome.cost_j / outcome.epoch_j - outcome.epochs
            state = replace(
                state,
                epoch_j=put(state.epoch_j, index, outcome.epoch_j),
                full_j=put(state.full_j, index, outcome.full_j),
                power=put(state.power, index, outcome.power),
                sweep_epochs=max(state.sweep_epochs, sweep),
            )
        state = replace(
            state,
            spent_j=state.spent_j + outcome.cost_j,
            retries=0 if outcome.reached else state.retries + 1,
            outliers=outliers,
            pending=remove_one(state.pending, outcome.batch),
        )
        if len(outliers) >= DRIFT_RUNS:
            return restart_after_drift(state)
        if outcome.reached:
            return add_run(state, index, log_epochs)
        return add_stopped_run(state, index, log_epochs, outcome.epochs)

    def _choose(self, state: TunerState, posterior: Posterior) -> tuple[int, bool]:
        """Return the index of the batch size to run next, and True if it is a trial."""
        allowed_j = self._remaining_allowance_j(state, posterior)
        known = _choose_known(state, posterior, allowed_j)
        if state.retries or known != posterior.best:
            return known, False
        values = self._value_trials(state, posterior)
        value = values.total_j.copy()
        value[values.extra_j > allowed_j] = -np.inf
        for batch in state.pending:
            value[state.task.batches.index(batch)] = -np.inf
        value[posterior.best] = 0.0
        cost_j = values.extra_j + COST_OFFSET * posterior.best_j
        pick = int(np.argmax(np.maximum(value, 0.0) / cost_j))
        if value[pick] <= 0:
            limit_j = self._neighbour_limit_j(state, posterior, allowed_j)
            pick = _choose_neighbour(state, posterior, values.extra_j, limit_j)
        return pick, pick != posterior.best

    def _neighbour_limit_j(self, state: TunerState, posterior: Posterior, allowed_j: float) -> float:
        """Return the largest extra cost of trying a neighbour of the best batch size."""
        return min(
            NEIGHBOUR_SHARE * allowed_j,
            NEIGHBOUR_COST * posterior.best_j,
            NEIGHBOUR_SHARE * self._horizon(state) * posterior.best_j,
        )

    def _horizon(self, state: TunerState) -> float:
        """Return the recurrences to come for which a trial is made."""
        if self.expected is not None:
            return self.expected
        return FIRST_RECURRENCES + float(state.local_runs.sum())

    def _value_trials(self, state: TunerState, posterior: Posterior) -> TrialValues:
        """Return the values of trials; of none is positive if a stopped one would cost too much."""
        best, best_j, width = posterior.best, posterior.best_j, len(posterior.mean_j)
        noise, allowed_j = np.full(width, posterior.noise), self._remaining_allowance_j(state, posterior)
        bounds = BOUNDS[BOUNDS * best_j <= RISK * allowed_j]
        units = _unit_noise(posterior.run_j.shape)
        stop_j, cost_j = choose_stops(
            posterior.run_j, posterior.normal, noise, units, posterior.weight, best_j,
            bounds if len(bounds) else BOUNDS[:1],
        )  # fmt: skip
        sweep_j = np.where(np.isnan(state.epoch_j), state.sweep_epochs * posterior.epoch_j, 0.0)
        extra_j = np.maximum(cost_j + sweep_j - best_j, 0.0)
        extra_j[best] = 0.0
        saving_j = best_j * expect_improvement(posterior.cost_j, posterior.weight, noise, best, REPEATS)
        saving_j = saving_j - saving_j[:, [best]]  # running the best gives its information for free
        total_j = (self._horizon(state) * saving_j - REPEATS[:, None] * extra_j).max(axis=0)
        if not len(bounds):
            total_j, extra_j = np.full(width, -np.inf), np.full(width, np.inf)
        return TrialValues(total_j, saving_j[0], extra_j, stop_j)

    def _remaining_allowance_j(self, state: TunerState, posterior: Posterior) -> float:
        """Return what may still be lost against staying at the default at full power, in this run, too.

        All that was really spent counts. The default is priced by its own runs as soon as there are some.
        """
        default = state.task.batches.index(state.task.default)
        ratio, run_j = float(state.full_j[default] / state.epoch_j[default]), float(posterior.mean_j[default])
        if math.isnan(ratio):  # not run here: assume the same effect of power limits as at other batch sizes
            ratio = float(np.nanmax(state.full_j / state.epoch_j))
        elif state.runs[default]:
            run_j = float(state.epochs_spent[default] / state.runs[default] * state.epoch_j[default])
        recurrences = float(state.local_runs.sum()) + 1
        return (recurrences + self.allowance) * ratio * run_j - state.spent_j - posterior.best_j


def _first_batch(state: TunerState) -> int:
    """Return the batch size to run before one has reached the target: the nearest that was tried least."""
    if not state.stopped_runs.any() or state.runs.any():
        return state.first_batch
    if state.stopped_runs.min() >= TRIES:
        raise ConfigError(
            f"none of the batch sizes {', '.join(map(str, state.task.batches))} reached the target"
            f" in {TRIES} runs each"
        )
    tries = dict(zip(state.task.batches, state.stopped_runs.tolist(), strict=True))
    return min(tries, key=lambda batch: (tries[batch], abs(math.log(batch / state.task.default)), batch))


def _choose_known(state: TunerState, posterior: Posterior, allowed_j: float) -> int:
    """Return the best batch size, or the default if it may be as good and no run more may be lost.

    A batch size that was tried once may fail the next time: it has to be cheaper than the default by a
    standard deviation.
    """
    default = state.task.batches.index(state.task.default)
    if allowed_j >= posterior.best_j or not state.runs[default]:
        return posterior.best
    ahead = np.log(posterior.cost_j[:, default] / posterior.cost_j[:, posterior.best])
    mean = float(posterior.weight @ ahead)
    return posterior.best if mean**2 > posterior.weight @ (ahead - mean) ** 2 and mean > 0 else default


def _copy_epochs(state: TunerState, elsewhere: TunerState) -> TunerState:
    """Return *state* with the epochs of common batch sizes from *elsewhere*, starting at the best there.

    Runs that failed for good are left out: here there may be more memory.
    """
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
    place, never = dict(zip(source, target, strict=True)), math.log(elsewhere.task.max_epochs)
    stops = tuple((place[i], stop) for i, stop in elsewhere.stops if i in place and stop < never)
    counts = np.bincount(np.array([i for i, _ in stops], np.int64), minlength=len(state.task.batches))
    return replace(
        state,
        first_batch=first_batch,
        runs=copy(elsewhere.runs),
        log_epochs_sum=copy(elsewhere.log_epochs_sum),
        log_epochs_squares=copy(elsewhere.log_epochs_squares),
        stopped_runs=counts.astype(np.float64),
        epochs_spent=copy(elsewhere.epochs_spent),
        stops=stops,
    )


@lru_cache(maxsize=64)
def _unit_noise(shape: tuple[int, ...]) -> Floats:
    """Return heavy-tailed draws with unit variance (Student's t with four degrees of freedom)."""
    return np.asarray(np.random.default_rng(1).standard_t(4, shape) / math.sqrt(2.0))


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


def _limit_epochs(epochs: float, task: TuningTask) -> int:
    """Return the epochs rounded up, because a started epoch is worth completing; 1 to *max_epochs*."""
    return int(min(max(math.ceil(epochs - 1e-9), 1), task.max_epochs))
