"""Successive halving: worse trials are stopped early, so that more can be tried.

Hyperband: Li et al., JMLR 18 (2018). ASHA: Li et al., MLSys 2020, in the variant that stops instead of
pausing, as in Optuna and Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattline.errors import ConfigError
from wattline.fusion.search.strategy import EpochResult, RandomTrials, Search, TrialDecision, TrialTask


@dataclass(frozen=True)
class Rung:
    """*count* trials of a bracket are trained up to *epochs* epochs."""

    count: int
    epochs: int


def brackets(epochs: int, eta: int) -> list[list[Rung]]:
    """Return Hyperband's brackets, starting with the one of most trials."""
    depth = 0
    while eta ** (depth + 1) <= epochs:
        depth += 1
    return [bracket(-(-(depth + 1) * eta**s // (s + 1)), s, epochs, eta) for s in range(depth, -1, -1)]


def bracket(count: int, depth: int, epochs: int, eta: int) -> list[Rung]:
    """Return the rungs of *count* trials: one in *eta* continues, for *eta* times as long."""
    return [Rung(max(1, count // eta**i), max(1, epochs // eta ** (depth - i))) for i in range(depth + 1)]


@dataclass
class _Bracket:
    rungs: list[Rung]
    level: int = 0
    unfinished: set[int] = field(default_factory=set)  # trials that have not reached the rung of the level
    reached: dict[int, float] = field(default_factory=dict)


class SynchronousHalving(RandomTrials):
    """Synchronous halving: a rung is decided once all trials of a bracket have reached it or failed."""

    staggered = True

    def __init__(self, task: TrialTask, plan: Sequence[list[Rung]]) -> None:
        super().__init__(task, sum(rungs[0].count for rungs in plan))
        self._sign = task.sign
        self._bracket_of: dict[int, _Bracket] = {}
        for rungs in plan:
            own_bracket = _Bracket(rungs)
            for number in range(len(self._bracket_of), len(self._bracket_of) + rungs[0].count):
                own_bracket.unfinished.add(number)
                self._bracket_of[number] = own_bracket

    def decide(self, results: Sequence[EpochResult]) -> Mapping[int, TrialDecision]:
        """Pause trials at a rung; when all of the bracket are there, continue the best."""
        decisions: dict[int, TrialDecision] = {}
        for item in sorted(results, key=lambda item: item.number):
            own_bracket = self._bracket_of[item.number]
            if item.failed:
                own_bracket.unfinished.discard(item.number)
            elif item.epochs == own_bracket.rungs[own_bracket.level].epochs and own_bracket.level + 1 < len(
                own_bracket.rungs
            ):
                own_bracket.unfinished.discard(item.number)
                own_bracket.reached[item.number] = self._sign * item.value
                decisions[item.number] = TrialDecision.PAUSE
            else:
                continue
            if not own_bracket.unfinished and own_bracket.reached:
                decisions.update(_promote(own_bracket))
        return decisions


def _promote(own_bracket: _Bracket) -> dict[int, TrialDecision]:
    own_bracket.level += 1
    order = sorted(own_bracket.reached, key=lambda number: (own_bracket.reached[number], number))
    own_bracket.unfinished = set(order[: own_bracket.rungs[own_bracket.level].count])
    own_bracket.reached = {}
    return {
        number: TrialDecision.GO if number in own_bracket.unfinished else TrialDecision.STOP
        for number in order
    }


class AsynchronousHalving(RandomTrials):
    """Asynchronous halving: a trial continues if it is among the best seen at its rung so far."""

    staggered = True

    def __init__(self, task: TrialTask, count: int, eta: int, first: int) -> None:
        super().__init__(task, count)
        self._sign = task.sign
        self._eta = eta
        self._seen: dict[int, list[float]] = {}  # by the epochs of the rung
        while first < task.epochs:
            self._seen[first] = []
            first *= eta

    def decide(self, results: Sequence[EpochResult]) -> Mapping[int, TrialDecision]:
        """Decide the trials at a rung after recording all values of the same epoch."""
        arrived = [item for item in results if not item.failed and item.epochs in self._seen]
        for item in arrived:
            self._seen[item.epochs].append(self._sign * item.value)
        return {
            item.number: TrialDecision.GO
            if self._sign * item.value <= cutoff(self._seen[item.epochs], self._eta)
            else TrialDecision.STOP
            for item in arrived
        }


def cutoff(seen: Sequence[float], eta: int) -> float:
    """Return the worst value in the top 1/eta of *seen*, at least one of them; lower is better."""
    return sorted(seen)[max(1, len(seen) // eta) - 1]


@dataclass(frozen=True)
class Hyperband:
    """Brackets that differ in how early they stop trials, earliest first.

    Without a number of trials, each bracket runs once; with one, brackets repeat until there are as many
    trials, and the last is cut.
    """

    eta: int = 3

    def __post_init__(self) -> None:
        _check_eta(self.eta)

    def __call__(self, task: TrialTask) -> Search:
        """Return the search for one task."""
        full_plan = brackets(task.epochs, self.eta)
        if task.trials is None:
            return SynchronousHalving(task, full_plan)
        plan: list[list[Rung]] = []
        remaining = task.trials
        while remaining:
            rungs = full_plan[len(plan) % len(full_plan)]
            count = min(remaining, rungs[0].count)
            plan.append(bracket(count, len(rungs) - 1, task.epochs, self.eta))
            remaining -= count
        return SynchronousHalving(task, plan)


@dataclass(frozen=True)
class ASHA:
    """Rungs at *first*, *first* · eta, *first* · eta², … epochs; at each, the top 1/eta seen continue.

    The stopped trials depend on the order of arrival, and so on the width of the array.
    """

    eta: int = 3
    first: int = 1

    def __post_init__(self) -> None:
        _check_eta(self.eta)
        if self.first < 1:
            raise ConfigError(f"first is {self.first}, expected at least 1 epoch")

    def __call__(self, task: TrialTask) -> Search:
        """Return the search for one task."""
        return AsynchronousHalving(task, task.require_trials("ASHA"), self.eta, self.first)


def _check_eta(eta: int) -> None:
    if not isinstance(eta, int) or eta < 2:
        raise ConfigError(f"eta is {eta!r}, expected a whole number of at least 2")
