"""State of the Bayesian batch-size tuner: run statistics of one recurring job, and drift detection."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from wattline.batch_size.bandit import TuningTask
from wattline.core.table import Floats

NOISE, NOISE_WEIGHT, NOISE_FLOOR = 0.10, 4.0, 0.02
"""Prior standard deviation of log epochs between equal runs, its weight in runs, and its minimum."""
DRIFT_RUNS, DRIFT_DEVIATIONS = 6, 2.0
"""Consecutive runs and standard deviations off to one side that count as a change of the data.

If one run in five is an outlier, six in a row happen by chance once in 15,000 runs.
"""


class OutlierRun(NamedTuple):
    """A run that took far more or fewer epochs than earlier runs at its batch size."""

    batch_index: int
    log_epochs: float
    above: bool
    reached: bool


@dataclass(frozen=True, eq=False)
class TunerState:
    """Statistics of a job's runs; arrays have an entry per batch size, epochs are natural logarithms.

    *runs* that reached the target include other kinds of GPU: epochs do not depend on the GPU.
    """

    task: TuningTask
    first_batch: int
    runs: Floats
    log_epochs_sum: Floats  # sum of log epochs
    log_epochs_squares: Floats  # sum of squared log epochs
    stopped_runs: Floats  # runs that did not reach the target
    epochs_spent: Floats  # epochs of all runs, stopped ones included
    local_runs: Floats  # runs on this kind of GPU
    epoch_j: Floats  # cost of an epoch at the best power limit; nan: not measured
    full_j: Floats  # cost of an epoch at the largest power limit
    power: Floats  # power draw at the largest limit, as a share of it
    stops: tuple[tuple[int, float], ...] = ()  # batch size (index) and log epochs of runs that were stopped
    spent_j: float = 0.0  # on all runs on this kind of GPU, stopped ones included
    sweep_epochs: float = 0.0  # what trying the power limits of a batch size costs, in epochs
    retries: int = 0  # of the recurrence that has not reached the target yet
    outliers: tuple[OutlierRun, ...] = ()
    pending: tuple[int, ...] = ()


def is_started(state: TunerState) -> bool:
    """Return True if a run reached the target and the cost of some epoch is known."""
    return bool(state.runs.any()) and not bool(np.isnan(state.epoch_j).all())


def add_run(state: TunerState, index: int, log_epochs: float, times: int = 1) -> TunerState:
    """Return the state with *times* more runs at a batch size; negative *times* removes runs."""
    return replace(
        state,
        runs=put(state.runs, index, state.runs[index] + times),
        local_runs=put(state.local_runs, index, state.local_runs[index] + times),
        epochs_spent=put(state.epochs_spent, index, state.epochs_spent[index] + times * math.exp(log_epochs)),
        log_epochs_sum=put(state.log_epochs_sum, index, state.log_epochs_sum[index] + times * log_epochs),
        log_epochs_squares=put(
            state.log_epochs_squares, index, state.log_epochs_squares[index] + times * log_epochs**2
        ),
    )


def add_stopped_run(state: TunerState, index: int, log_epochs: float, spent: float) -> TunerState:
    """Return the state with one more run that did not reach the target in *log_epochs*, after *spent*."""
    return replace(
        state,
        stopped_runs=put(state.stopped_runs, index, state.stopped_runs[index] + 1),
        epochs_spent=put(state.epochs_spent, index, state.epochs_spent[index] + spent),
        stops=(*state.stops, (index, log_epochs)),
    )


def update_outliers(
    state: TunerState, index: int, log_epochs: float, reached: bool
) -> tuple[OutlierRun, ...]:
    """Return the latest consecutive runs that differ from earlier ones, all to the same side."""
    before = state
    for old in state.outliers:
        if old.batch_index == index and old.reached:  # exclude earlier outliers from the reference
            before = add_run(before, index, old.log_epochs, -1)
    if before.runs[index] < DRIFT_RUNS:
        return state.outliers
    deviation = math.sqrt(float(run_variance(before)[index]) * (1 + 1 / float(before.runs[index])))
    off = (log_epochs - float(before.log_epochs_sum[index] / before.runs[index])) / deviation
    if abs(off) < DRIFT_DEVIATIONS or (not reached and off < 0):
        return ()
    same_side = state.outliers and state.outliers[-1].above == (off > 0)
    return (*(state.outliers if same_side else ()), OutlierRun(index, log_epochs, off > 0, reached))


def restart_after_drift(state: TunerState) -> TunerState:
    """Return a state that knows only the outlier runs; the costs of an epoch are kept."""
    zeros = np.zeros(len(state.task.batches))
    outliers = state.outliers
    state = replace(
        state,
        runs=zeros,
        log_epochs_sum=zeros,
        log_epochs_squares=zeros,
        stopped_runs=zeros,
        epochs_spent=zeros,
        stops=(),
        local_runs=zeros,
        spent_j=0.0,
        outliers=(),
    )
    for run in outliers:
        if run.reached:
            state = add_run(state, run.batch_index, run.log_epochs)
        else:
            state = add_stopped_run(state, run.batch_index, run.log_epochs, math.exp(run.log_epochs))
    return state


def run_noise(state: TunerState) -> float:
    """Return the standard deviation of log epochs between equal runs, pooled over all batch sizes."""
    runs = np.maximum(state.runs, 1)
    within = float(np.maximum(state.log_epochs_squares - state.log_epochs_sum**2 / runs, 0.0).sum())
    variance = (NOISE_WEIGHT * NOISE**2 + within) / (NOISE_WEIGHT + float((runs - 1).sum()))
    return max(math.sqrt(variance), NOISE_FLOOR)


def run_variance(state: TunerState) -> Floats:
    """Return the variance of log epochs at each batch size.

    The noise that is pooled over all batch sizes is the prior of each.
    """
    runs, prior = np.maximum(state.runs, 1), run_noise(state) ** 2
    within = np.maximum(state.log_epochs_squares - state.log_epochs_sum**2 / runs, 0.0)
    return np.maximum((NOISE_WEIGHT * prior + within) / (NOISE_WEIGHT + runs - 1), NOISE_FLOOR**2)


def put(column: Floats, index: int, value: float) -> Floats:
    """Return a copy of *column* with one value replaced."""
    column = column.copy()
    column[index] = value
    return column
