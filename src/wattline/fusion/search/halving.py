"""Successive halving: the worse trials are stopped early, so that many can be tried.

Hyperband: Li et al., JMLR 18 (2018). ASHA: Li et al., MLSys 2020, in the variant that stops instead of
pausing, as in Optuna and Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattline.errors import ConfigError
from wattline.fusion.search.strategy import Drawn, News, Search, Task, Verdict


@dataclass(frozen=True)
class Rung:
    """*count* trials of a bracket are trained until they have had *epochs*."""

    count: int
    epochs: int


def brackets(epochs: int, eta: int) -> list[list[Rung]]:
    """Hyperband's brackets, the one with most trials first."""
    depth = 0
    while eta ** (depth + 1) <= epochs:
        depth += 1
    return [bracket(-(-(depth + 1) * eta**s // (s + 1)), s, epochs, eta) for s in range(depth, -1, -1)]


def bracket(count: int, depth: int, epochs: int, eta: int) -> list[Rung]:
    """The rungs through which *count* trials go: each time one in *eta* stays, for *eta* times as long."""
    return [Rung(max(1, count // eta**i), max(1, epochs // eta ** (depth - i))) for i in range(depth + 1)]


@dataclass
class _Bracket:
    rungs: list[Rung]
    level: int = 0
    going: set[int] = field(default_factory=set)  # have not yet reached the end of the level
    reached: dict[int, float] = field(default_factory=dict)


class Halving(Drawn):
    """Synchronous: nobody goes on before all of a bracket have reached the rung or failed."""

    staggered = True

    def __init__(self, task: Task, plan: Sequence[list[Rung]]) -> None:
        super().__init__(task, sum(rungs[0].count for rungs in plan))
        self._sign = task.sign
        self._home: dict[int, _Bracket] = {}
        for rungs in plan:
            home = _Bracket(rungs)
            for number in range(len(self._home), len(self._home) + rungs[0].count):
                home.going.add(number)
                self._home[number] = home

    def judge(self, news: Sequence[News]) -> Mapping[int, Verdict]:
        """Who has reached a rung stands back; when all have, the best go on."""
        verdicts: dict[int, Verdict] = {}
        for item in sorted(news, key=lambda item: item.number):
            home = self._home[item.number]
            if item.failed:
                home.going.discard(item.number)
            elif item.epochs == home.rungs[home.level].epochs and home.level + 1 < len(home.rungs):
                home.going.discard(item.number)
                home.reached[item.number] = self._sign * item.value
                verdicts[item.number] = Verdict.PAUSE
            else:
                continue
            if not home.going and home.reached:
                verdicts.update(_promote(home))
        return verdicts


def _promote(home: _Bracket) -> dict[int, Verdict]:
    home.level += 1
    order = sorted(home.reached, key=lambda number: (home.reached[number], number))
    home.going = set(order[: home.rungs[home.level].count])
    home.reached = {}
    return {number: Verdict.GO if number in home.going else Verdict.STOP for number in order}


class Asynchronous(Drawn):
    """Who reaches a rung goes on if it is among the best of those seen there so far."""

    staggered = True

    def __init__(self, task: Task, count: int, eta: int, first: int) -> None:
        super().__init__(task, count)
        self._sign = task.sign
        self._eta = eta
        self._seen: dict[int, list[float]] = {}  # by the epochs of the rung
        while first < task.epochs:
            self._seen[first] = []
            first *= eta

    def judge(self, news: Sequence[News]) -> Mapping[int, Verdict]:
        """All who arrive in the same epoch are seen before any is judged."""
        arrived = [item for item in news if not item.failed and item.epochs in self._seen]
        for item in arrived:
            self._seen[item.epochs].append(self._sign * item.value)
        return {
            item.number: Verdict.GO
            if self._sign * item.value <= cutoff(self._seen[item.epochs], self._eta)
            else Verdict.STOP
            for item in arrived
        }


def cutoff(seen: Sequence[float], eta: int) -> float:
    """The worst value in the top 1/eta of those *seen*, lower being better; one at least is in it."""
    return sorted(seen)[max(1, len(seen) // eta) - 1]


@dataclass(frozen=True)
class Hyperband:
    """Brackets that differ in how early they stop trials, most eager first.

    Without a number of trials, each bracket is run once; with one, they are repeated until there are as many,
    and the last is cut.
    """

    eta: int = 3

    def __post_init__(self) -> None:
        _check_eta(self.eta)

    def __call__(self, task: Task) -> Search:
        """The search for one task."""
        whole = brackets(task.epochs, self.eta)
        if task.trials is None:
            return Halving(task, whole)
        plan: list[list[Rung]] = []
        left = task.trials
        while left:
            rungs = whole[len(plan) % len(whole)]
            count = min(left, rungs[0].count)
            plan.append(bracket(count, len(rungs) - 1, task.epochs, self.eta))
            left -= count
        return Halving(task, plan)


@dataclass(frozen=True)
class ASHA:
    """Rungs at *first*, *first* · eta, *first* · eta², … epochs; at each, the top 1/eta of those seen go on.

    Who is stopped depends on who came first, and so on how many are trained at a time.
    """

    eta: int = 3
    first: int = 1

    def __post_init__(self) -> None:
        _check_eta(self.eta)
        if self.first < 1:
            raise ConfigError(f"the first rung is at {self.first} epochs, expected at least 1")

    def __call__(self, task: Task) -> Search:
        """The search for one task."""
        return Asynchronous(task, task.count("ASHA"), self.eta, self.first)


def _check_eta(eta: int) -> None:
    if not isinstance(eta, int) or eta < 2:
        raise ConfigError(f"eta is {eta!r}, expected a whole number of at least 2")
