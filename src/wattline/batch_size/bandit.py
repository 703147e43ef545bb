"""Interface of batch-size optimisers for recurring jobs, and the bandit of Zeus (NSDI'23).

An optimiser has no mutable state: `next` returns the trial to run, `epoch_limit` its maximum length, and
`observe` a state updated with an outcome. Zeus is the reference; Wattline's own tuner is in `bayesian`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np

from wattline.errors import ConfigError

StateT = TypeVar("StateT")
ADAPTIVE = frozenset(("adam", "adamw", "adadelta", "adagrad", "rmsprop", "lamb"))


@dataclass(frozen=True)
class TuningTask:
    """Search space of a recurring job: allowed batch sizes, default, and maximum number of epochs."""

    batches: tuple[int, ...]
    default: int
    max_epochs: int

    def __post_init__(self) -> None:
        if not self.batches or any(a >= b for a, b in zip(self.batches, self.batches[1:], strict=False)):
            raise ConfigError(f"batch sizes must be ascending and at least one, got {self.batches}")
        if self.batches[0] < 1:
            raise ConfigError(f"a batch size must be at least 1, got {self.batches[0]}")
        if self.default not in self.batches:
            raise ConfigError(f"the default batch size {self.default} is not one of {self.batches}")
        if self.max_epochs < 1:
            raise ConfigError(f"max_epochs must be at least 1, got {self.max_epochs}")


@dataclass(frozen=True)
class BatchTrial:
    """A run to be made; *explores*: it is not at the best known batch size."""

    batch: int
    explores: bool = False


@dataclass(frozen=True)
class Outcome:
    """Result of a run; 0 epochs: it was not started, because one epoch exceeds the cost limit.

    Costs combine energy and time, in joules. *epoch_j* is the cost of an epoch at the best power limit of
    this batch size, *full_j* at the largest limit; *earlier_j* is the cost of earlier tries of the same
    recurrence. *power* is the GPU's draw at the largest limit as a share of that limit; nan: unknown.
    """

    batch: int
    epochs: int
    reached: bool
    cost_j: float
    epoch_j: float
    full_j: float
    earlier_j: float = 0.0
    power: float = math.nan


class Optimizer(Protocol[StateT]):
    """A batch-size optimiser with immutable states."""

    def start(self, task: TuningTask) -> StateT:
        """Return the state before the first run."""
        ...

    def next(self, state: StateT, rng: np.random.Generator) -> BatchTrial:
        """Return the next trial."""
        ...

    def epoch_limit(self, state: StateT, trial: BatchTrial, epoch_j: float) -> int:
        """Return the epochs after which *trial* is stopped, given the measured cost of an epoch."""
        ...

    def start_trial(self, state: StateT, trial: BatchTrial) -> StateT:
        """Return the state while *trial* runs, for choosing concurrent runs."""
        ...

    def observe(self, state: StateT, outcome: Outcome) -> StateT:
        """Return the state updated with *outcome*."""
        ...


@dataclass(frozen=True)
class ZeusState:
    """Progress of pruning (`down`, then `up`: batch sizes left to try) and the costs of each batch size."""

    task: TuningTask
    down: tuple[int, ...]
    up: tuple[int, ...]
    rounds: int = 0
    survivors: tuple[tuple[int, float], ...] = ()
    costs: dict[int, tuple[float, ...]] = field(default_factory=dict)
    cheapest_j: float = math.inf
    cheapest: int = 0
    pending: tuple[int, ...] = ()

    @property
    def pruning_batch(self) -> int | None:
        """Batch size that pruning tries next; None after pruning."""
        return next(iter(self.down or self.up), None)

    @property
    def arms(self) -> tuple[int, ...]:
        """Batch sizes that survived pruning."""
        return tuple(sorted(batch for batch, _ in self.survivors))


@dataclass(frozen=True)
class Zeus:
    """Zeus: pruning, then Gaussian Thompson sampling; runs stop at *beta* times the lowest cost so far.

    Pruning tries the default, smaller ones until one fails, larger ones until one fails; twice, the second
    time from the cheapest. *window* is the number of most recent costs per batch size used; 0 = all.
    """

    beta: float = 2.0
    window: int = 0
    rounds: int = 2

    def __post_init__(self) -> None:
        if not self.beta > 1:
            raise ConfigError(f"beta must be above 1, got {self.beta}")
        if self.window == 1 or self.window < 0:
            raise ConfigError(f"window must be 0 (all) or at least 2, got {self.window}")

    def start(self, task: TuningTask) -> ZeusState:
        """Return the state that starts pruning at the default."""
        return ZeusState(task, *_split_directions(task.batches, task.default))

    def next(self, state: ZeusState, rng: np.random.Generator) -> BatchTrial:
        """Return the next trial of pruning, the cheapest so far while it runs, or a Thompson sample."""
        batch = state.pruning_batch
        if batch is not None:
            if batch in state.pending:
                return BatchTrial(state.cheapest or state.task.default)
            return BatchTrial(batch, explores=True)
        draws = [_draw_mean_cost(state.costs[arm], self.window, rng) for arm in state.arms]
        return BatchTrial(state.arms[int(np.argmin(draws))])

    def epoch_limit(self, state: ZeusState, trial: BatchTrial, epoch_j: float) -> int:
        """Return the epochs that cost at most *beta* times the lowest cost; 0: do not start."""
        if math.isinf(state.cheapest_j) or math.isinf(self.beta):
            return state.task.max_epochs
        return int(min(self.beta * state.cheapest_j // epoch_j, state.task.max_epochs))

    def start_trial(self, state: ZeusState, trial: BatchTrial) -> ZeusState:
        """Return the state with *trial* running."""
        return replace(state, pending=(*state.pending, trial.batch))

    def observe(self, state: ZeusState, outcome: Outcome) -> ZeusState:
        """Return the state with the cost recorded, and pruning advanced if it tried this batch size."""
        batch = outcome.batch
        cost_j = outcome.cost_j if outcome.epochs else 100 * self.beta * state.cheapest_j
        if state.pruning_batch == batch == state.task.default and not state.costs and not outcome.reached:
            raise ConfigError(f"the default batch size {batch} did not reach the target")
        pruned_now = state.pruning_batch == batch
        state = replace(
            state,
            costs={**state.costs, batch: (*state.costs.get(batch, ()), cost_j)},
            pending=remove_one(state.pending, batch),
        )
        whole_j = cost_j + outcome.earlier_j
        if outcome.reached and whole_j < state.cheapest_j:
            state = replace(state, cheapest_j=whole_j, cheapest=batch)
        return self._prune(state, cost_j, outcome.reached) if pruned_now else state

    def _prune(self, state: ZeusState, cost_j: float, reached: bool) -> ZeusState:
        """Advance pruning: a failure ends its direction, both directions end a round."""
        on_way_down = bool(state.down)
        batch = (state.down or state.up)[0]
        if reached:
            state = replace(state, survivors=(*state.survivors, (batch, cost_j)))
        if on_way_down:
            state = replace(state, down=state.down[1:] if reached else ())
        else:
            state = replace(state, up=state.up[1:] if reached else ())
        if state.down or state.up:
            return state
        if not state.survivors:
            raise ConfigError("no batch size reached the target")
        state = replace(state, rounds=state.rounds + 1)
        if state.rounds >= self.rounds:
            return state
        cheapest = min(state.survivors, key=lambda survivor: survivor[1])[0]
        down, up = _split_directions(state.arms, cheapest)
        return replace(state, down=down, up=up, survivors=())


def scaled_lr(lr: float, from_batch: int, to_batch: int, optimizer: str) -> float:
    """Return the learning rate at *to_batch*: square-root scaling for Adam and its kind, else linear."""
    if from_batch < 1 or to_batch < 1:
        raise ConfigError(f"a batch size must be at least 1, got {min(from_batch, to_batch)}")
    ratio = to_batch / from_batch
    return lr * (math.sqrt(ratio) if optimizer.casefold() in ADAPTIVE else ratio)


def _split_directions(batches: tuple[int, ...], start: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    index = batches.index(start)
    return batches[index::-1], batches[index + 1 :]


def _draw_mean_cost(costs: tuple[float, ...], window: int, rng: np.random.Generator) -> float:
    """Draw the mean cost from its posterior with a flat prior and the sample variance as known variance."""
    recent = np.array(costs[-window:])
    return float(rng.normal(recent.mean(), math.sqrt(recent.var() / len(recent))))


def remove_one(pending: tuple[int, ...], batch: int) -> tuple[int, ...]:
    """Return *pending* without one trial of *batch*."""
    if batch not in pending:
        return pending
    index = pending.index(batch)
    return pending[:index] + pending[index + 1 :]
