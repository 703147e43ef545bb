"""Trace-driven replay of batch-size optimisers on recorded trainings.

As in Zeus' simulator, a run at a batch size is drawn from the recorded runs, the first epoch of a batch size
sweeps the power limits and costs their mean, and a stopped run is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from wattline.batch_size.bandit import Optimizer, Outcome, TuningTask
from wattline.batch_size.recorded_runs import RecordedTables, RecordedTraining
from wattline.core.table import Floats, Ints
from wattline.errors import ConfigError
from wattline.models.cost import energy_time_cost

MAX_TRIES = 20


@dataclass(frozen=True)
class Goal:
    """Target of a training, its maximum number of epochs, and its usual batch size."""

    target: float
    max_epochs: int
    default: int


GOALS: Mapping[str, Goal] = {
    "cifar100": Goal(0.60, 100, 1024),
    "imagenet": Goal(0.65, 100, 256),
    "squad": Goal(84.0, 6, 32),
    "librispeech": Goal(40.0, 16, 256),
    "movielens-1m": Goal(0.41, 100, 1024),
    "sentiment140": Goal(0.84, 10, 128),
}
"""Goals of the published trainings; a default that does not fit on a GPU becomes its largest batch size."""


@dataclass(frozen=True, eq=False)
class TuningCase:
    """A recorded training as a recurring job; array rows are batch sizes, columns power limits.

    *seconds* and *watts* of an epoch are nan where a batch size was not measured at a limit.
    """

    gpu: str
    name: str
    task: TuningTask
    epochs: tuple[Floats, ...]  # of the recorded runs; inf: target not reached within the maximum
    caps_w: Floats
    seconds: Floats
    watts: Floats
    max_w: float
    eta: float
    target: float | None = None

    @cached_property
    def epoch_j(self) -> Floats:
        """Energy-time cost of an epoch at each batch size and limit."""
        return energy_time_cost(self.watts * self.seconds, self.seconds, eta=self.eta, max_w=self.max_w)

    @cached_property
    def best_cap(self) -> Ints:
        """Index of the cheapest limit of each batch size."""
        return np.asarray(np.nanargmin(self.epoch_j, axis=1))

    @cached_property
    def full_cap(self) -> Ints:
        """Index of the largest measured limit of each batch size."""
        measured = ~np.isnan(self.epoch_j)
        return np.asarray(measured.shape[1] - 1 - np.argmax(measured[:, ::-1], axis=1))

    @cached_property
    def mean_epochs(self) -> Floats:
        """Mean epochs of the runs that reach the target, by batch size; inf: none does."""
        return np.array([_mean(runs[np.isfinite(runs)]) for runs in self.epochs])

    @cached_property
    def expected_j(self) -> Floats:
        """Expected cost of a run that reaches the target at each batch size at its best limit."""
        return np.asarray(self.mean_epochs * np.nanmin(self.epoch_j, axis=1))

    @cached_property
    def price_epochs(self) -> Floats:
        """Expected epochs until the target if a batch size is repeated, with runs that fail; inf: never."""
        share = np.array([float(np.isfinite(runs).mean()) for runs in self.epochs])
        with np.errstate(divide="ignore"):
            return np.asarray(self.mean_epochs + self.task.max_epochs * (1 / share - 1))

    @cached_property
    def oracle(self) -> int:
        """Index of the cheapest batch size that always reaches the target; without one, with its reruns."""
        sure = np.array([bool(np.isfinite(runs).all()) for runs in self.epochs])
        price_j = self.price_epochs * np.nanmin(self.epoch_j, axis=1)
        return int(np.argmin(np.where(sure | ~sure.any(), price_j, np.inf)))

    @property
    def oracle_j(self) -> float:
        """Expected cost of a recurrence at the oracle."""
        return float(self.price_epochs[self.oracle] * np.nanmin(self.epoch_j[self.oracle]))

    @property
    def default_run(self) -> tuple[float, float, float]:
        """Expected joules, seconds and cost of a run at the default and full power."""
        return self.expected_run(self.default_index, int(self.full_cap[self.default_index]))

    def expected_run(self, batch: int, cap: int) -> tuple[float, float, float]:
        """Return the expected joules, seconds and cost of a run; *batch* and *cap* are indices."""
        epochs = self.mean_epochs[batch]
        seconds = epochs * self.seconds[batch, cap]
        return (
            float(seconds * self.watts[batch, cap]),
            float(seconds),
            float(epochs * self.epoch_j[batch, cap]),
        )

    @property
    def default_index(self) -> int:
        """Index of the default batch size."""
        return self.task.batches.index(self.task.default)

    @property
    def recurrences(self) -> int:
        """Number of recurrences in Zeus' experiments: twice the number of settings."""
        return 2 * int(np.count_nonzero(~np.isnan(self.epoch_j)))


@dataclass(frozen=True, eq=False)
class ReplayedRuns:
    """Setting of each recurrence that reached the target, and the totals over all its tries."""

    batch: Ints  # index
    cap: Ints
    cost_j: Floats
    energy_j: Floats
    time_s: Floats
    tries: Ints


@dataclass(frozen=True)
class Score:
    """Score of an optimiser: regrets in runs of the oracle, savings in % of the default.

    *settles10*: first recurrence from which every five in a row are expected within 10 % of the oracle;
    nan: never.
    """

    last_energy: float
    last_time: float
    settled: float
    whole_energy: float
    regret: float
    pure_regret: float
    settles10: float
    settles5: float


def build_cases(
    published: RecordedTables, gpu: str, eta: float = 0.5, *, all_targets: bool = False
) -> tuple[list[TuningCase], list[str]]:
    """Return the cases recorded on *gpu*, and the names of trainings without a goal.

    *all_targets*: a case for each target level in the table that some run reaches, not the usual one alone.
    """
    cases_found, without_goal = [], []
    for dataset in published.datasets:
        goal = GOALS.get(dataset)
        if goal is None:
            without_goal.append(dataset)
            continue
        for target in published.targets_of(dataset) if all_targets else (goal.target,):
            recorded = published.select_training(dataset, gpu, target)
            if recorded is None:
                continue
            case = build_case(recorded, goal, eta)
            if not all_targets or np.isfinite(case.mean_epochs).any():
                cases_found.append(case)
    return cases_found, without_goal


def build_case(recorded: RecordedTraining, goal: Goal, eta: float = 0.5) -> TuningCase:
    """Build the case of a recorded training."""
    default = max((b for b in recorded.batches if b <= goal.default), default=recorded.batches[0])
    task = TuningTask(recorded.batches, default, goal.max_epochs)
    runs = [np.where(runs <= goal.max_epochs, runs, np.inf) for runs in recorded.epochs]
    return TuningCase(
        recorded.gpu, recorded.dataset, task, tuple(runs), recorded.caps_w, recorded.seconds,
        recorded.watts, recorded.max_w, eta, recorded.target,
    )  # fmt: skip


def replay(case: TuningCase, optimizer: Optimizer[Any], seed: int, count: int | None = None) -> ReplayedRuns:
    """Replay *count* recurrences; the k-th run at a batch size is the same for all optimisers with a seed."""
    count = case.recurrences if count is None else count
    batches = {batch: index for index, batch in enumerate(case.task.batches)}
    runs = _RunSampler(case, seed)
    rng = np.random.default_rng((seed, 1))
    state = optimizer.start(case.task)
    rows = np.zeros((count, 6))
    for recurrence in range(count):
        recurrence_totals = np.zeros(3)
        for tries in range(1, MAX_TRIES + 1):  # noqa: B007  read after the loop
            trial = optimizer.next(state, rng)
            index = batches[trial.batch]
            limit = optimizer.epoch_limit(state, trial, runs.epoch_j[index])
            outcome, totals = runs.run(index, trial.batch, limit, float(recurrence_totals[0]))
            state = optimizer.observe(state, outcome)
            recurrence_totals += totals
            if outcome.reached:
                break
        else:
            raise ConfigError(f"{case.name} did not reach its target in {MAX_TRIES} tries of one recurrence")
        rows[recurrence] = index, case.best_cap[index], *recurrence_totals, tries
    batch, cap, cost_j, energy_j, time_s, try_count = rows.T.copy()
    return ReplayedRuns(
        batch.astype(np.int64), cap.astype(np.int64), cost_j, energy_j, time_s, try_count.astype(np.int64)
    )


class _RunSampler:
    """Draws recorded runs, and tracks which batch sizes were swept already."""

    def __init__(self, case: TuningCase, seed: int) -> None:
        rows, best = np.arange(len(case.best_cap)), case.best_cap
        self.epoch_j: list[float] = case.epoch_j[rows, best].tolist()
        self._full_j: list[float] = case.epoch_j[rows, case.full_cap].tolist()
        self._power: list[float] = (case.watts[rows, case.full_cap] / case.max_w).tolist()
        self._max = case.task.max_epochs
        joules = case.seconds * case.watts
        self._later = np.stack(
            (case.epoch_j[rows, best], joules[rows, best], case.seconds[rows, best]), axis=1
        )
        self._first = np.stack(
            [np.nanmean(each, axis=1) for each in (case.epoch_j, joules, case.seconds)], axis=1
        )
        self._epochs = case.epochs
        self._draws = [np.random.default_rng((seed, 0, index)) for index in range(len(best))]
        self._drawn: list[list[float]] = [[] for _ in best]
        self._swept = [False] * len(best)

    def run(self, index: int, batch: int, limit: int, earlier_j: float) -> tuple[Outcome, Floats]:
        """Run at most *limit* epochs; return the outcome, and cost, joules and seconds."""
        needed = self._draw(index)
        limit = min(limit, self._max)
        reached = needed <= limit
        epochs = int(needed) if reached else limit
        totals = self._later[index] * epochs
        if epochs and not self._swept[index]:
            totals = totals + self._first[index] - self._later[index]
            self._swept[index] = True
        outcome = Outcome(
            batch,
            epochs,
            reached,
            float(totals[0]),
            self.epoch_j[index],
            self._full_j[index],
            earlier_j,
            self._power[index],
        )
        return outcome, totals

    def _draw(self, index: int) -> float:
        if not self._drawn[index]:
            self._drawn[index] = self._draws[index].choice(self._epochs[index], 64).tolist()
        return self._drawn[index].pop()


def score(case: TuningCase, done: ReplayedRuns) -> Score:
    """Score *done* against the default at full power and against the oracle."""
    base_j, base_s, _ = case.default_run
    if math.isinf(base_j):  # the default never reaches the target: nothing to compare with
        base_j = base_s = math.nan
    best_j = case.oracle_j
    expected = case.expected_j[done.batch]
    configs, counts = np.unique(done.batch[-20:], return_counts=True)
    excess = _moving_average(expected) / best_j - 1
    return Score(
        last_energy=100 * (1 - float(done.energy_j[-5:].mean()) / base_j),
        last_time=100 * (1 - float(done.time_s[-5:].mean()) / base_s),
        settled=float(case.expected_j[configs[np.argmax(counts)]]) / best_j,
        whole_energy=100 * (1 - float(done.energy_j.mean()) / base_j),
        regret=float((done.cost_j - best_j).sum()) / best_j,
        pure_regret=float((expected - best_j).sum()) / best_j,
        settles10=_find_settled(excess, 0.10),
        settles5=_find_settled(excess, 0.05),
    )


def default_regret(case: TuningCase, count: int | None = None) -> float:
    """Return the regret of staying at the default and full power, in runs of the oracle; inf: never ends."""
    _, _, default_j = case.default_run
    return (case.recurrences if count is None else count) * (default_j / case.oracle_j - 1)


def _moving_average(costs: Floats) -> Floats:
    """Return the moving average over five."""
    sums = np.cumsum(np.concatenate(([0.0], costs)))
    width = min(5, len(costs))
    return np.asarray((sums[width:] - sums[:-width]) / width)


def _find_settled(excess: Floats, within: float) -> float:
    """Return the first recurrence, from 1, after which no window exceeds *within*; nan: the last does."""
    bad = np.flatnonzero(excess > within + 1e-12)
    if not len(bad):
        return 1.0
    return float(bad[-1]) + 2.0 if bad[-1] + 1 < len(excess) else float("nan")


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else float("inf")
