"""The search protocol: propose trials, receive their results, decide which continue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from wattline.errors import ConfigError
from wattline.fusion.search.result import Trial
from wattline.fusion.search.space import Config, Space, draw_config


class TrialDecision(Enum):
    """Decision about a trial that has not reached its last epoch."""

    GO = "go on"
    PAUSE = "pause until decided"
    STOP = "stop"


@dataclass(frozen=True)
class TrialTask:
    """The task of a search; *trials* None: the search chooses. *sign* is -1 for maximisation."""

    space: Space
    trials: int | None
    epochs: int
    seed: int
    sign: int = 1

    def require_trials(self, searcher: str) -> int:
        """Return the number of trials; raise `ConfigError` if it is not set, since *searcher* needs it."""
        if self.trials is None:
            raise ConfigError(f"{searcher} needs a number of trials", "pass trials=64, for example")
        return self.trials


@dataclass(frozen=True)
class ProposedTrial:
    """A trial to run."""

    number: int
    config: Config


@dataclass(frozen=True)
class EpochResult:
    """The *value* of a trial after *epochs* epochs; a value that is not finite means failure."""

    number: int
    epochs: int
    value: float

    @property
    def failed(self) -> bool:
        """True if the value is not finite."""
        return not math.isfinite(self.value)


class Search(Protocol):
    """A search: it proposes trials and decides about them, independent of how they are trained.

    *staggered*: some trials are stopped early, so that others start while their neighbours continue.
    """

    staggered: bool

    def ask(self, count: int) -> Sequence[ProposedTrial]:
        """Return the next *count* trials, or more if nothing is learnt by waiting; empty at the end."""

    def decide(self, results: Sequence[EpochResult]) -> Mapping[int, TrialDecision]:
        """Return decisions by trial number, also for paused trials; trials without one continue.

        *results* are those of one epoch. Trials at their last epoch end regardless of the decision.
        """

    def on_trial_end(self, trial: Trial) -> None:
        """Record that a trial is complete, pruned or failed."""

    def abandon(self) -> None:
        """Record that no more trials will run."""


class RandomTrials:
    """Random trials, all drawn at the start; none is stopped early."""

    staggered = False

    def __init__(self, task: TrialTask, count: int) -> None:
        self._trials = [
            ProposedTrial(number, draw_config(task.space, task.seed, number)) for number in range(count)
        ]

    def ask(self, count: int) -> Sequence[ProposedTrial]:
        """Return all trials on the first call."""
        proposed, self._trials = self._trials, []
        return proposed

    def decide(self, results: Sequence[EpochResult]) -> Mapping[int, TrialDecision]:
        """Let all trials continue."""
        return {}

    def on_trial_end(self, trial: Trial) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class RandomSearch:
    """Random search: every trial is trained to the end."""

    def __call__(self, task: TrialTask) -> Search:
        """Return the search for one task."""
        return RandomTrials(task, task.require_trials("random search"))
