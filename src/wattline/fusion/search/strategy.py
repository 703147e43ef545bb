"""What a search is: it proposes trials, is told how they do, and says who goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from wattline.errors import ConfigError
from wattline.fusion.search.result import Trial
from wattline.fusion.search.space import Config, Space, draw


class Verdict(Enum):
    """What becomes of a trial that could go on."""

    GO = "go on"
    PAUSE = "stand back until told"
    STOP = "stop"


@dataclass(frozen=True)
class Task:
    """What a search is for; *trials* None: as many as it thinks right. *sign* is -1 where more is better."""

    space: Space
    trials: int | None
    epochs: int
    seed: int
    sign: int = 1

    def count(self, who: str) -> int:
        """How many trials there will be, which *who* must be told."""
        if self.trials is None:
            raise ConfigError(f"{who} must be told how many trials to run", "say trials=64 or the like")
        return self.trials


@dataclass(frozen=True)
class Asked:
    """A trial to run."""

    number: int
    config: Config


@dataclass(frozen=True)
class News:
    """A trial has been trained for *epochs* and is worth *value*; it has failed if that is not finite."""

    number: int
    epochs: int
    value: float

    @property
    def failed(self) -> bool:
        """Whether it is out."""
        return not math.isfinite(self.value)


class Search(Protocol):
    """Proposes and decides; who trains the trials, and how many at a time, it does not know.

    It is *staggered* if some are stopped early, so that others begin while their neighbours go on.
    """

    staggered: bool

    def ask(self, count: int) -> Sequence[Asked]:
        """The next *count* trials, or more where waiting would teach nothing; none: that is all."""

    def judge(self, news: Sequence[News]) -> Mapping[int, Verdict]:
        """What becomes of trials by number, those who stand back included; who is not named goes on.

        *news* is what happened in one epoch. Who has been trained to the end leaves whatever the verdict.
        """

    def ended(self, trial: Trial) -> None:
        """A trial is complete, pruned or failed."""

    def abandon(self) -> None:
        """Nothing more will be run."""


class Drawn:
    """Trials drawn at random, all known from the start; whatever they do, they go on."""

    staggered = False

    def __init__(self, task: Task, count: int) -> None:
        self._left = [Asked(number, draw(task.space, task.seed, number)) for number in range(count)]

    def ask(self, count: int) -> Sequence[Asked]:
        """All of them, once."""
        left, self._left = self._left, []
        return left

    def judge(self, news: Sequence[News]) -> Mapping[int, Verdict]:
        """Everybody goes on."""
        return {}

    def ended(self, trial: Trial) -> None:
        """Nothing is learnt from it."""

    def abandon(self) -> None:
        """Nobody else knows of the trials."""


@dataclass(frozen=True)
class Random:
    """Random search: every trial is trained to the end."""

    def __call__(self, task: Task) -> Search:
        """The search for one task."""
        return Drawn(task, task.count("random search"))
