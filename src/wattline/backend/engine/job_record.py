"""A job that is not over, and the processes that it shares with others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wattline.backend.engine.job_spec import Given, Work
from wattline.backend.engine.local.attempt import Attempt
from wattline.backend.engine.progress import Progress


@dataclass
class Life:
    """A job: what to run, what it asks for, and how far it is."""

    work: Work
    asks: Mapping[str, Any]  # columns of `Jobs`, one value each
    submit_s: float
    fuse: str = ""  # equal for those who may be one array
    done: float = 0.0  # fraction that is saved
    kills: int = 0  # how often it was killed
    starts: int = 0
    first_s: float = math.nan
    service_s: float = 0.0
    energy_j: float | None = 0.0  # None: unmetered
    due_s: float = -math.inf  # not in the queue before
    closed: int = 0  # the last attempt of which it is known how it ended
    cancelled: bool = False  # it is to end
    row: int = -1  # in the present table; -1: it is not in the queue
    base: float = 0.0  # fraction that was saved when it got that row

    @property
    def id(self) -> str:
        """Its name."""
        return self.work.id

    @property
    def team(self) -> str:
        """Whose energy it uses."""
        return str(self.asks.get("team", ""))


@dataclass(eq=False)
class Run:
    """Jobs that share processes: one job, or an array."""

    jobs: list[str]
    node: int
    given: Given
    since_s: float
    attempt: Attempt | None = None  # None: its GPUs are not free yet
    pidfd: int | None = None
    array: bool = False  # several jobs were started as one
    why: str = ""  # it was told to end: stop, cancel, budget
    leaving: dict[str, str] = field(default_factory=dict)  # why a member was told to end
    told: dict[str, Progress] = field(default_factory=dict)
    looked_s: float = -math.inf
    watts: float | None = None  # when it was last looked at
    said: tuple[float, float] = (-math.inf, 0.0)  # when a rate was last told, and which
