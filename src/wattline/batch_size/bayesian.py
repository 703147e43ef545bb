"""Our optimiser of batch sizes: explores where that is likely to pay back, and stops when it no longer does.

A run costs epochs times the cost of an epoch, and both are believed to have a known form over the batch size
(`wattline.batch_size.prior`). A trial is worth what it is expected to save later, less what it costs more than
the best that is known. What may be lost against staying at the default is limited to about one run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from wattline.batch_size.bandit import Outcome, Task, Trial, without
from wattline.batch_size.prior import draws, grid, looks_busy
from wattline.core.table import Floats
from wattline.errors import ConfigError

NOISE, NOISE_WEIGHT, NOISE_FLOOR = 0.10, 4.0, 0.02
"""How much epochs of equal runs differ, as if seen in so many runs; and the least that they ever do."""
REPEATS = (1, 3, 8)
"""Runs that a plan to look at a batch size may have: where runs differ much, one alone says nothing."""
BOUNDS = (1.0, 1.25, 1.5, 1.75, 2.0)
"""Where runs may be stopped, in costs of the best: not before it could be as good, and as Zeus' at twice."""
PATIENCE = 5.0  # recurrences in which a trial must pay back that the allowance has no room for
SHARE = 0.1  # of a run: trials are compared by gain for cost, and this is added to the cost of each
LOOKS, CHEAP, SPARE = 2, 0.3, 0.1
"""As forms err, neighbours of the best are looked at so often, for so much of a run and of what was saved."""
SURPRISES, SURPRISE = 6, 2.0
"""So many runs in a row, so many deviations off to one side: the data has changed. Where one run in five is
odd, six in a row come by chance once in 15,000."""


class Surprise(NamedTuple):
    """A run that took far more or fewer epochs than its batch size did before."""

    at: int
    log: float
    above: bool
    reached: bool


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a job; columns have an entry for each batch size. Epochs in natural logarithms.

    *runs* that reached the target may have run on other kinds of GPU: epochs do not depend on it.
    """

    task: Task
    first: int
    runs: Floats
    total: Floats  # of log epochs
    squares: Floats
    failed: Floats  # runs that did not reach the target
    beyond: Floats  # log epochs after which they had not
    here: Floats  # runs on this kind of GPU
    epoch_j: Floats  # cost of an epoch at the best limit; nan: never swept
    full_j: Floats  # and at the largest
    power: Floats  # share of the largest limit that is drawn there
    lost_j: float = 0.0  # on runs that were stopped, and on sweeps
    retries: int = 0  # of the recurrence that has not reached the target yet
    surprises: tuple[Surprise, ...] = ()
    pending: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Belief:
    """Draws of what a run costs (rows) at each batch size, their weights, and what follows."""

    epochs: Floats
    cost_j: Floats
    weight: Floats
    noise: float
    mean_j: Floats
    best: int

    @property
    def best_j(self) -> float:
        """What a run at the best is expected to cost."""
        return float(self.mean_j[self.best])


@dataclass(frozen=True, eq=False)
class Worth:
    """What trying each batch size is worth, saves in each later run, and costs more than the best."""

    all_j: Floats
    saves_j: Floats
    extra_j: Floats
    bound_j: Floats  # where such a trial should be stopped


@dataclass(frozen=True)
class Recurring:
    """Chooses by what a trial costs and saves over the *expected* number of recurrences that are left.

    *allowance*: runs of the default that may be lost against staying there, beyond what was saved.
    """

    expected: float = 100.0
    allowance: float = 1.0

    def __post_init__(self) -> None:
        for name in ("expected", "allowance"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")

    def start(self, task: Task, elsewhere: Known | None = None) -> Known:
        """Nothing is known, or only the epochs of the same job on another kind of GPU (*elsewhere*)."""
        zeros, unknown = np.zeros(len(task.batches)), np.full(len(task.batches), np.nan)
        state = Known(task, task.default, zeros, zeros, zeros, zeros, zeros, zeros, unknown, unknown, unknown)
        return state if elsewhere is None else _seeded(state, elsewhere)

    def next(self, state: Known, rng: np.random.Generator) -> Trial:
        """The trial that is worth most for its cost; the best that is known where none is worth it."""
        if not _started(state):
            return Trial(_first(state))
        belief = believe(state)
        pick = belief.best if state.retries else self._pick(state, belief)
        return Trial(state.task.batches[pick], explores=pick != belief.best)

    def why(self, state: Known) -> str:
        """Why `next` says what it says, in words."""
        if not _started(state):
            return "nothing ran yet on this kind of GPU"
        belief = believe(state)
        if state.retries:
            return "the last run was stopped: the best that is known"
        pick = self._pick(state, belief)
        if pick == belief.best:
            return "the best that is known; no trial is worth its cost"
        worth = self._worth(belief)
        saves, extra = (100 * float(each[pick]) / belief.best_j for each in (worth.saves_j, worth.extra_j))
        return (
            f"to learn: expected to cost {extra:.1f} % of a run once, to save {saves:.2f} % of each later one"
        )

    def epochs(self, state: Known, trial: Trial, epoch_j: float) -> int:
        """Stop when starting again with the best that is known is expected to be cheaper than going on."""
        task = state.task
        if not _started(state) or state.retries > 1:
            return task.max_epochs
        at = task.batches.index(trial.batch)
        swept_now = math.isnan(state.epoch_j[at])
        if swept_now:
            state = replace(state, epoch_j=_put(state.epoch_j, at, epoch_j))
        belief = believe(state)
        if not trial.explores:
            return _whole(BOUNDS[-1] * belief.best_j / epoch_j, task)
        worth = self._worth(belief)
        if swept_now and worth.all_j[at] < -epoch_j:
            return 1  # the sweep says that it was not worth it
        return _whole(worth.bound_j[at] / epoch_j, task)

    def begin(self, state: Known, trial: Trial) -> Known:
        """*trial* runs: nobody else starts it to learn the same."""
        return replace(state, pending=(*state.pending, trial.batch))

    def observe(self, state: Known, outcome: Outcome) -> Known:
        """One outcome more; what was known of epochs is forgotten when the data has changed."""
        at = state.task.batches.index(outcome.batch)
        log = math.log(max(outcome.epochs, 1))
        surprises = _surprised(state, at, log, outcome.reached)
        if outcome.epochs:
            state = replace(
                state,
                epoch_j=_put(state.epoch_j, at, outcome.epoch_j),
                full_j=_put(state.full_j, at, outcome.full_j),
                power=_put(state.power, at, outcome.power),
            )
        state = replace(
            state,
            lost_j=state.lost_j + outcome.cost_j - outcome.reached * outcome.epochs * outcome.epoch_j,
            retries=0 if outcome.reached else state.retries + 1,
            surprises=surprises,
            pending=without(state.pending, outcome.batch),
        )
        if len(surprises) >= SURPRISES:
            return _changed(state)
        return _ran(state, at, log) if outcome.reached else _stopped(state, at, log)

    def _pick(self, state: Known, belief: Belief) -> int:
        worth, left_j = self._worth(belief), self._left_j(state, belief)
        value = worth.all_j.copy()
        value[(worth.extra_j > left_j) & (PATIENCE * worth.saves_j < worth.extra_j)] = -np.inf
        for batch in state.pending:
            value[state.task.batches.index(batch)] = -np.inf
        value[belief.best] = 0.0
        ratio = np.where(value > 0, value / (worth.extra_j + SHARE * belief.best_j), 0.0)
        pick = int(np.argmax(ratio))
        return (
            pick if value[pick] > 0 else _beside(state, belief, worth.extra_j, self._most_j(belief, left_j))
        )

    def _most_j(self, belief: Belief, left_j: float) -> float:
        """What a look at a neighbour may cost: little of a run, of what was saved, and of what is to come."""
        return min(SPARE * left_j, CHEAP * belief.best_j, SPARE * self.expected * belief.best_j)

    def _worth(self, belief: Belief) -> Worth:
        bound_j, costs_j = _bounds(belief)
        extra_j = np.maximum(costs_j - belief.best_j, 0.0)
        extra_j[belief.best] = 0.0
        saves_j = belief.best_j * _tells(belief)
        saves_j = saves_j - saves_j[:, [belief.best]]  # what the best itself will tell is for nothing
        all_j = (self.expected * saves_j - np.array(REPEATS)[:, None] * extra_j).max(axis=0)
        return Worth(all_j, saves_j[0], extra_j, bound_j)

    def _left_j(self, state: Known, belief: Belief) -> float:
        """What may still be lost against staying at the default with full power, beside a run at the best."""
        at = state.task.batches.index(state.task.default)
        epochs, full_j = float(belief.weight @ belief.epochs[:, at]), float(state.full_j[at])
        if math.isnan(full_j):  # it never ran here: its sweep is believed to look like the others
            more = np.nanmax(state.full_j / state.epoch_j)
            full_j = float(belief.mean_j[at]) / epochs * float(more)
        runs = np.maximum(state.runs, 1)
        each_j = np.exp(state.total / runs + belief.noise**2 / 2) * state.epoch_j
        spent_j = state.lost_j + float(state.here @ np.where(state.here > 0, each_j, 0.0))
        return (float(state.here.sum()) + self.allowance + 1) * epochs * full_j - spent_j - belief.best_j


@lru_cache(maxsize=16)
def believe(state: Known) -> Belief:
    """What follows from all that was seen; remembered by the identity of the state."""
    task = state.task
    forms = grid(task.batches, task.default)
    noise, runs = _noise(state), np.maximum(state.runs, 1)
    seen = np.where(state.runs > 0, state.total / runs, np.nan)
    epochs = draws(forms.epochs, forms.epochs_cov, forms.first, seen, _variance(state) / runs)
    weight = _agree(epochs, state, noise)
    epoch = _epoch_draws(task.batches, task.default, _key(state.epoch_j), _key(state.power))
    most = math.log(task.max_epochs)
    epochs = np.where(epochs > most, most + 3.0, epochs)  # such a run never ends: far too expensive
    cost_j = np.exp(epochs + epoch + noise**2 / 2)
    mean_j = weight @ cost_j
    best = int(np.argmin(np.where(state.runs > 0, mean_j, np.inf)))
    return Belief(np.exp(epochs), cost_j, weight, noise, mean_j, best)


def _started(state: Known) -> bool:
    return bool(state.runs.any()) and not bool(np.isnan(state.epoch_j).all())


def _first(state: Known) -> int:
    default = state.task.default
    if state.failed[state.task.batches.index(default)] and not state.runs.any():
        raise ConfigError(f"the default batch size {default} did not reach the target")
    return state.first


def _seeded(state: Known, elsewhere: Known) -> Known:
    """Epochs of the batch sizes that both have, and the best there to start with."""
    both = [b for b in state.task.batches if b in elsewhere.task.batches]
    to = [state.task.batches.index(b) for b in both]
    of = [elsewhere.task.batches.index(b) for b in both]

    def both_have(column: Floats) -> Floats:
        found = np.zeros(len(state.task.batches))
        found[to] = column[of]
        return found

    first = state.first
    if _started(elsewhere):
        best = elsewhere.task.batches[believe(elsewhere).best]
        first = best if best in both else first
    return replace(
        state,
        first=first,
        runs=both_have(elsewhere.runs),
        total=both_have(elsewhere.total),
        squares=both_have(elsewhere.squares),
        failed=both_have(elsewhere.failed),
        beyond=both_have(elsewhere.beyond),
    )


def _ran(state: Known, at: int, log: float, times: int = 1) -> Known:
    return replace(
        state,
        runs=_put(state.runs, at, state.runs[at] + times),
        here=_put(state.here, at, state.here[at] + times),
        total=_put(state.total, at, state.total[at] + times * log),
        squares=_put(state.squares, at, state.squares[at] + times * log**2),
    )


def _stopped(state: Known, at: int, log: float) -> Known:
    failed, beyond = state.failed[at] + 1, max(state.beyond[at], log)
    return replace(state, failed=_put(state.failed, at, failed), beyond=_put(state.beyond, at, beyond))


def _surprised(state: Known, at: int, log: float, reached: bool) -> tuple[Surprise, ...]:
    """The latest runs that were far off what their batch size did before, all to one side."""
    since = [each.log for each in state.surprises if each.at == at and each.reached]
    before = state
    for old in since:  # they are not what was usual
        before = _ran(before, at, old, -1)
    if before.runs[at] < SURPRISES:
        return state.surprises
    deviation = math.sqrt(float(_variance(before)[at]) * (1 + 1 / float(before.runs[at])))
    off = (log - float(before.total[at] / before.runs[at])) / deviation
    if abs(off) < SURPRISE or (not reached and off < 0):
        return ()
    same = state.surprises and state.surprises[-1].above == (off > 0)
    return (*(state.surprises if same else ()), Surprise(at, log, off > 0, reached))


def _changed(state: Known) -> Known:
    """A new start, with the runs that told of it: epochs are others now, what an epoch costs is not."""
    zeros = np.zeros(len(state.task.batches))
    told, state = state.surprises, replace(
        state, runs=zeros, total=zeros, squares=zeros, failed=zeros, beyond=zeros, here=zeros,
        lost_j=0.0, surprises=(),
    )  # fmt: skip
    for each in told:
        state = (_ran if each.reached else _stopped)(state, each.at, each.log)
    return state


def _noise(state: Known) -> float:
    """How much equal runs differ: what was seen at all batch sizes, and a little of what is usual."""
    runs = np.maximum(state.runs, 1)
    within = float(np.maximum(state.squares - state.total**2 / runs, 0.0).sum())
    variance = (NOISE_WEIGHT * NOISE**2 + within) / (NOISE_WEIGHT + float((runs - 1).sum()))
    return max(math.sqrt(variance), NOISE_FLOOR)


def _variance(state: Known) -> Floats:
    """Of a run at each batch size: wild others make it likely to be wild, steady ones say nothing."""
    runs, usual = np.maximum(state.runs, 1), max(NOISE, _noise(state)) ** 2
    within = np.maximum(state.squares - state.total**2 / runs, 0.0)
    return np.maximum((NOISE_WEIGHT * usual + within) / (NOISE_WEIGHT + runs - 1), NOISE_FLOOR**2)


def _agree(epochs: Floats, state: Known, noise: float) -> Floats:
    """Weights of draws by how well they agree that stopped runs had not reached the target by then."""
    at = np.flatnonzero(state.failed)
    later = (epochs[:, at] - state.beyond[at]) / noise
    log = np.log(1e-6 + ndtr(later)) @ state.failed[at]
    weight = np.exp(log - log.max())
    return np.asarray(weight / weight.sum())


@lru_cache(maxsize=1024)
def _epoch_draws(
    batches: tuple[int, ...], default: int, epoch_j: tuple[float, ...], power: tuple[float, ...]
) -> Floats:
    forms = grid(batches, default)
    known, drawn = (np.where(np.array(column) > 0, column, np.nan) for column in (epoch_j, power))
    prior = looks_busy(forms, drawn) if any(power) else None
    return draws(forms.epoch, forms.epoch_cov, forms.second, np.log(known), np.full(len(known), 1e-6), prior)


def _bounds(belief: Belief) -> tuple[Floats, Floats]:
    """Where to stop a run at each, and what it and the run that follows a stop are then expected to cost."""
    runs_j = belief.cost_j * np.exp(belief.noise * _unit_noise(belief.cost_j.shape))
    ends = [np.where(runs_j <= b * belief.best_j, runs_j, (b + 1) * belief.best_j) for b in BOUNDS]
    costs_j = np.array([belief.weight @ end for end in ends])
    at = np.argmin(costs_j, axis=0)
    return np.array(BOUNDS)[at] * belief.best_j, costs_j[at, np.arange(len(at))]


@lru_cache(maxsize=64)
def _unit_noise(shape: tuple[int, ...]) -> Floats:
    """Draws with heavy tails and unit variance."""
    return np.asarray(np.random.default_rng(1).standard_t(4, shape) / math.sqrt(2.0))


def _tells(belief: Belief) -> Floats:
    """By which share of a run the then best is expected to be cheaper after `REPEATS` (rows) runs at each."""
    log = np.log(belief.cost_j)
    best = log[:, [belief.best]]
    apart = np.minimum(log - best, math.log(BOUNDS[-1]))  # worse than that is all the same
    own = apart + best
    own = own - belief.weight @ own
    mean = belief.weight @ apart
    weighted = belief.weight[:, None] * own
    together = np.abs((apart - mean).T @ weighted)  # row: what may be better, column: what is run
    variance = (weighted * own).sum(axis=0)
    noise = belief.noise**2 / np.array(REPEATS)[:, None, None]
    return np.asarray(_gain(mean[:, None], together / np.sqrt(variance + noise)).max(axis=1))


def _gain(mean: Floats, spread: Floats) -> Floats:
    """E[max(0, −X)] of a normal X."""
    spread = np.maximum(spread, 1e-12)
    z = np.clip(mean / spread, -30, 30)
    return np.asarray(spread * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) - mean * ndtr(-z))


def _beside(state: Known, belief: Belief, extra_j: Floats, most_j: float) -> int:
    """A neighbour of the best that was hardly looked at, if that costs less than *most_j*; else the best."""
    near = [
        at
        for at in (belief.best - 1, belief.best + 1)
        if 0 <= at < len(extra_j)
        and state.runs[at] + state.failed[at] < LOOKS
        and extra_j[at] < most_j
        and state.task.batches[at] not in state.pending
    ]
    return min(near, key=lambda at: float(extra_j[at]), default=belief.best)


def _whole(epochs: float, task: Task) -> int:
    """As many epochs as just go beyond the bound: one that is begun is worth ending."""
    return int(min(max(math.ceil(epochs - 1e-9), 1), task.max_epochs))


def _key(column: Floats) -> tuple[float, ...]:
    """A column as a key of a cache, in which nan would never be found again: 0 is unknown."""
    return tuple(np.where(np.isnan(column), 0.0, column).tolist())


def _put(column: Floats, at: int, value: float) -> Floats:
    column = column.copy()
    column[at] = value
    return column
