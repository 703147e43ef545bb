"""What would an optimiser of batch sizes have done with trainings that were recorded?

Trace-driven, as Zeus' simulator: a run at a batch size is one of the recorded runs, drawn; the first epoch of
a batch size sweeps the power limits, and costs their mean; a run that is stopped is tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from wattline.batch_size.bandit import Optimizer, Outcome, Task
from wattline.batch_size.recorded_runs import Published, Recorded
from wattline.core.table import Floats, Ints
from wattline.errors import ConfigError
from wattline.models.cost import energy_time_cost

TRIES = 20


@dataclass(frozen=True)
class Goal:
    """What a training is run for: its target, when to give up, and the batch size people use."""

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
"""Of the published trainings; a default that a GPU has no room for becomes its largest batch size."""


@dataclass(frozen=True, eq=False)
class Case:
    """A recorded training as a recurring job; rows are batch sizes, columns power limits."""

    gpu: str
    name: str
    task: Task
    epochs: tuple[Floats, ...]  # of the recorded runs; inf where one never reached the target in time
    caps_w: Floats
    seconds: Floats
    watts: Floats
    max_w: float
    eta: float

    @cached_property
    def epoch_j(self) -> Floats:
        """What an epoch costs at each limit, energy and time together."""
        return energy_time_cost(self.watts * self.seconds, self.seconds, eta=self.eta, max_w=self.max_w)

    @cached_property
    def best(self) -> Ints:
        """The cheapest limit of each batch size."""
        return np.asarray(np.argmin(self.epoch_j, axis=1))

    @cached_property
    def mean_epochs(self) -> Floats:
        """Of the runs that reach the target; inf where none does."""
        return np.array([_mean(runs[np.isfinite(runs)]) for runs in self.epochs])

    @cached_property
    def expected_j(self) -> Floats:
        """What a run at each batch size is expected to cost, at its best limit."""
        return np.asarray(self.mean_epochs * self.epoch_j.min(axis=1))

    @cached_property
    def oracle(self) -> int:
        """The cheapest batch size of those that always reach the target."""
        sure = [bool(np.isfinite(runs).all()) for runs in self.epochs]
        return int(np.argmin(np.where(sure, self.expected_j, np.inf)))

    def run(self, batch: int, cap: int) -> tuple[float, float, float]:
        """Joules, seconds and cost that a run is expected to take (positions, not values)."""
        epochs = self.mean_epochs[batch]
        seconds = epochs * self.seconds[batch, cap]
        return (
            float(seconds * self.watts[batch, cap]),
            float(seconds),
            float(epochs * self.epoch_j[batch, cap]),
        )

    @property
    def default(self) -> int:
        """Where the default is among the batch sizes."""
        return self.task.batches.index(self.task.default)

    @property
    def recurrences(self) -> int:
        """How often it recurs in Zeus' experiments: enough to try every setting twice."""
        return 2 * self.epoch_j.size


@dataclass(frozen=True, eq=False)
class Recurrences:
    """What each recurrence did: the setting that reached the target, and what all tries took."""

    batch: Ints  # position
    cap: Ints
    cost_j: Floats
    energy_j: Floats
    time_s: Floats
    tries: Ints


@dataclass(frozen=True)
class Score:
    """How well an optimiser did. Regrets are in runs of the oracle, savings in % of the default.

    *settles10*: from which recurrence on five in a row are expected within 10 % of the oracle; nan: never.
    """

    last_energy: float
    last_time: float
    settled: float
    whole_energy: float
    regret: float
    pure_regret: float
    settles10: float
    settles5: float


def cases(published: Published, gpu: str, eta: float = 0.5) -> tuple[list[Case], list[str]]:
    """The recurring jobs that were recorded on *gpu*, and the names of trainings without a goal."""
    found, unknown = [], []
    for dataset in published.datasets:
        goal = GOALS.get(dataset)
        if goal is None:
            unknown.append(dataset)
            continue
        recorded = published.recorded(dataset, gpu, goal.target)
        if recorded is not None:
            found.append(case_of(recorded, goal, eta))
    return found, unknown


def case_of(recorded: Recorded, goal: Goal, eta: float = 0.5) -> Case:
    """A recorded training as a recurring job."""
    default = max((b for b in recorded.batches if b <= goal.default), default=recorded.batches[0])
    task = Task(recorded.batches, default, goal.max_epochs)
    runs = [np.where(runs <= goal.max_epochs, runs, np.inf) for runs in recorded.epochs]
    return Case(
        recorded.gpu, recorded.dataset, task, tuple(runs), recorded.caps_w, recorded.seconds,
        recorded.watts, recorded.max_w, eta,
    )  # fmt: skip


def replay(case: Case, optimizer: Optimizer[Any], seed: int, count: int | None = None) -> Recurrences:
    """*count* recurrences; the k-th run at a batch size is the same for all optimisers with this seed."""
    count = case.recurrences if count is None else count
    batches = {batch: at for at, batch in enumerate(case.task.batches)}
    runs = _Runs(case, seed)
    rng = np.random.default_rng((seed, 1))
    state = optimizer.start(case.task)
    rows = np.zeros((count, 6))
    for recurrence in range(count):
        spent = np.zeros(3)
        for tries in range(1, TRIES + 1):  # noqa: B007  how many it took
            trial = optimizer.next(state, rng)
            at = batches[trial.batch]
            limit = optimizer.epochs(state, trial, runs.epoch_j[at])
            outcome, took = runs.run(at, trial.batch, limit, float(spent[0]))
            state = optimizer.observe(state, outcome)
            spent += took
            if outcome.reached:
                break
        else:
            raise ConfigError(f"{case.name} did not reach its target in {TRIES} tries")
        rows[recurrence] = at, case.best[at], *spent, tries
    batch, cap, cost_j, energy_j, time_s, tries_ = rows.T.copy()
    return Recurrences(
        batch.astype(np.int64), cap.astype(np.int64), cost_j, energy_j, time_s, tries_.astype(np.int64)
    )


class _Runs:
    """Draws runs; which batch sizes were swept already is the one thing that changes."""

    def __init__(self, case: Case, seed: int) -> None:
        rows, best = np.arange(len(case.best)), case.best
        self.epoch_j: list[float] = case.epoch_j[rows, best].tolist()
        self._full_j: list[float] = case.epoch_j[:, -1].tolist()
        self._power: list[float] = (case.watts[:, -1] / case.max_w).tolist()
        self._max = case.task.max_epochs
        joules = case.seconds * case.watts
        self._later = np.stack(
            (case.epoch_j[rows, best], joules[rows, best], case.seconds[rows, best]), axis=1
        )
        self._first = np.stack([each.mean(axis=1) for each in (case.epoch_j, joules, case.seconds)], axis=1)
        self._epochs = case.epochs
        self._draws = [np.random.default_rng((seed, 0, at)) for at in range(len(best))]
        self._drawn: list[list[float]] = [[] for _ in best]
        self._swept = [False] * len(best)

    def run(self, at: int, batch: int, limit: int, earlier_j: float) -> tuple[Outcome, Floats]:
        """One run of at most *limit* epochs: what the optimiser is told, and cost, joules, seconds."""
        needs = self._draw(at)
        limit = min(limit, self._max)
        reached = needs <= limit
        epochs = int(needs) if reached else limit
        took = self._later[at] * epochs
        if epochs and not self._swept[at]:
            took = took + self._first[at] - self._later[at]
            self._swept[at] = True
        outcome = Outcome(
            batch,
            epochs,
            reached,
            float(took[0]),
            self.epoch_j[at],
            self._full_j[at],
            earlier_j,
            self._power[at],
        )
        return outcome, took

    def _draw(self, at: int) -> float:
        if not self._drawn[at]:
            self._drawn[at] = self._draws[at].choice(self._epochs[at], 64).tolist()
        return self._drawn[at].pop()


def score(case: Case, done: Recurrences) -> Score:
    """How well *done* went, against the default at full power and against the oracle."""
    base_j, base_s, _ = case.run(case.default, len(case.caps_w) - 1)
    best_j = float(case.expected_j[case.oracle])
    expected = case.expected_j[done.batch]
    configs, counts = np.unique(done.batch[-20:], return_counts=True)
    over = _windows(expected) / best_j - 1
    return Score(
        last_energy=100 * (1 - float(done.energy_j[-5:].mean()) / base_j),
        last_time=100 * (1 - float(done.time_s[-5:].mean()) / base_s),
        settled=float(case.expected_j[configs[np.argmax(counts)]]) / best_j,
        whole_energy=100 * (1 - float(done.energy_j.mean()) / base_j),
        regret=float((done.cost_j - best_j).sum()) / best_j,
        pure_regret=float((expected - best_j).sum()) / best_j,
        settles10=_settles(over, 0.10),
        settles5=_settles(over, 0.05),
    )


def default_regret(case: Case, count: int | None = None) -> float:
    """The regret of staying at the default and full power, in runs of the oracle."""
    _, _, default_j = case.run(case.default, len(case.caps_w) - 1)
    best_j = float(case.expected_j[case.oracle])
    return (case.recurrences if count is None else count) * (default_j / best_j - 1)


def _windows(costs: Floats) -> Floats:
    """The mean of each five in a row."""
    sums = np.cumsum(np.concatenate(([0.0], costs)))
    width = min(5, len(costs))
    return np.asarray((sums[width:] - sums[:-width]) / width)


def _settles(over: Floats, within: float) -> float:
    """The recurrence, counted from 1, from which on no window is over; nan if the last one is."""
    bad = np.flatnonzero(over > within + 1e-12)
    if not len(bad):
        return 1.0
    return float(bad[-1]) + 2.0 if bad[-1] + 1 < len(over) else float("nan")


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else float("inf")
