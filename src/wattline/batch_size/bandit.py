"""Which batch size should a recurring training job use next? What optimisers are told and answer; and Zeus'.

An optimiser is a value without memory: `next` says what to try, `epochs` how long, and `observe` makes the
state that knows one outcome more. Zeus' (NSDI'23) is here as the reference; ours is in `recurring`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np

from wattline.errors import ConfigError

S = TypeVar("S")
ADAPTIVE = frozenset(("adam", "adamw", "adadelta", "adagrad", "rmsprop", "lamb"))


@dataclass(frozen=True)
class Task:
    """What is known of a recurring job before it ever ran: batch sizes that may be used, and its default."""

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
class Trial:
    """One run that should be made. *explores*: to learn, not because it is the best that is known."""

    batch: int
    explores: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a run. No epochs: it was not even started, as one epoch costs too much.

    Costs are of energy and time together, in joules. *epoch_j* is of an epoch at the power limit that is
    best for this batch size, *full_j* at the largest limit; *earlier_j* is what tries of the same recurrence
    cost before. *power* is what the GPU drew at the largest limit, as a share of that limit; nan: unknown.
    """

    batch: int
    epochs: int
    reached: bool
    cost_j: float
    epoch_j: float
    full_j: float
    earlier_j: float = 0.0
    power: float = math.nan


class Optimizer(Protocol[S]):
    """Chooses batch sizes; its states are values."""

    def start(self, task: Task) -> S:
        """What is known before the first run."""
        ...

    def next(self, state: S, rng: np.random.Generator) -> Trial:
        """What to run next."""
        ...

    def epochs(self, state: S, trial: Trial, epoch_j: float) -> int:
        """How many epochs it may take before it is stopped, now that an epoch is known to cost *epoch_j*."""
        ...

    def begin(self, state: S, trial: Trial) -> S:
        """The state while *trial* runs: whoever asks before its outcome is known runs beside it."""
        ...

    def observe(self, state: S, outcome: Outcome) -> S:
        """The state that knows this outcome too."""
        ...


@dataclass(frozen=True)
class ZeusState:
    """How far pruning is (`down`, then `up`: still to try), and what each batch size cost."""

    task: Task
    down: tuple[int, ...]
    up: tuple[int, ...]
    rounds: int = 0
    good: tuple[tuple[int, float], ...] = ()
    costs: dict[int, tuple[float, ...]] = field(default_factory=dict)
    least_j: float = math.inf
    least: int = 0
    pending: tuple[int, ...] = ()

    @property
    def expecting(self) -> int | None:
        """What pruning waits for; None when it is over."""
        return next(iter(self.down or self.up), None)

    @property
    def arms(self) -> tuple[int, ...]:
        """The batch sizes that survived pruning."""
        return tuple(sorted(batch for batch, _ in self.good))


@dataclass(frozen=True)
class Zeus:
    """Pruning, then Gaussian Thompson sampling; runs stop at *beta* times the least cost so far.

    Pruning tries the default, smaller ones until one fails, larger ones until one fails; twice, the second
    time from the cheapest. *window*: only the so many most recent costs of a batch size count; 0 is all.
    """

    beta: float = 2.0
    window: int = 0
    rounds: int = 2

    def __post_init__(self) -> None:
        if not self.beta > 1:
            raise ConfigError(f"beta must be above 1, got {self.beta}")
        if self.window == 1 or self.window < 0:
            raise ConfigError(f"window must be 0 for all or at least 2, got {self.window}")

    def start(self, task: Task) -> ZeusState:
        """Pruning from the default."""
        return ZeusState(task, *_around(task.batches, task.default))

    def next(self, state: ZeusState, rng: np.random.Generator) -> Trial:
        """What pruning expects; while that runs, the cheapest so far; after pruning, what a draw says."""
        waits = state.expecting
        if waits is not None:
            if waits in state.pending:
                return Trial(state.least or state.task.default)
            return Trial(waits, explores=True)
        draws = [_draw(state.costs[arm], self.window, rng) for arm in state.arms]
        return Trial(state.arms[int(np.argmin(draws))])

    def epochs(self, state: ZeusState, trial: Trial, epoch_j: float) -> int:
        """As many as cost no more than *beta* times the least; 0 is "do not even start"."""
        if math.isinf(state.least_j) or math.isinf(self.beta):
            return state.task.max_epochs
        return int(min(self.beta * state.least_j // epoch_j, state.task.max_epochs))

    def begin(self, state: ZeusState, trial: Trial) -> ZeusState:
        """*trial* runs."""
        return replace(state, pending=(*state.pending, trial.batch))

    def observe(self, state: ZeusState, outcome: Outcome) -> ZeusState:
        """Remember the cost; pruning goes on if it waited for this."""
        batch = outcome.batch
        cost_j = outcome.cost_j if outcome.epochs else 100 * self.beta * state.least_j
        if state.expecting == batch == state.task.default and not state.costs and not outcome.reached:
            raise ConfigError(f"the default batch size {batch} did not reach the target")
        waited = state.expecting == batch
        state = replace(
            state,
            costs={**state.costs, batch: (*state.costs.get(batch, ()), cost_j)},
            pending=without(state.pending, batch),
        )
        whole_j = cost_j + outcome.earlier_j
        if outcome.reached and whole_j < state.least_j:
            state = replace(state, least_j=whole_j, least=batch)
        return self._pruned(state, cost_j, outcome.reached) if waited else state

    def _pruned(self, state: ZeusState, cost_j: float, reached: bool) -> ZeusState:
        """One step of pruning: a failure ends its direction, both directions end a round."""
        on_way_down = bool(state.down)
        batch = (state.down or state.up)[0]
        if reached:
            state = replace(state, good=(*state.good, (batch, cost_j)))
        if on_way_down:
            state = replace(state, down=state.down[1:] if reached else ())
        else:
            state = replace(state, up=state.up[1:] if reached else ())
        if state.down or state.up:
            return state
        if not state.good:
            raise ConfigError("no batch size reached the target")
        state = replace(state, rounds=state.rounds + 1)
        if state.rounds >= self.rounds:
            return state
        cheapest = min(state.good, key=lambda found: found[1])[0]
        down, up = _around(state.arms, cheapest)
        return replace(state, down=down, up=up, good=())


def scaled_lr(lr: float, from_batch: int, to_batch: int, optimizer: str) -> float:
    """The learning rate for another batch size: by the root for Adam and its kind, else in proportion."""
    if from_batch < 1 or to_batch < 1:
        raise ConfigError(f"a batch size must be at least 1, got {min(from_batch, to_batch)}")
    ratio = to_batch / from_batch
    return lr * (math.sqrt(ratio) if optimizer.casefold() in ADAPTIVE else ratio)


def _around(batches: tuple[int, ...], start: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    at = batches.index(start)
    return batches[at::-1], batches[at + 1 :]


def _draw(costs: tuple[float, ...], window: int, rng: np.random.Generator) -> float:
    """A draw of the mean cost: flat prior, and the variance that was seen taken for the truth."""
    recent = np.array(costs[-window:])
    return float(rng.normal(recent.mean(), math.sqrt(recent.var() / len(recent))))


def without(pending: tuple[int, ...], batch: int) -> tuple[int, ...]:
    """*pending* when one trial of *batch* has ended."""
    if batch not in pending:
        return pending
    at = pending.index(batch)
    return pending[:at] + pending[at + 1 :]
