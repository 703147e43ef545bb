"""A run again from its log: what happened is read, what is decided must be what was decided."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wattline.core.actions import NO_ACTIONS, Actions
from wattline.core.events import EVERY_EVENT, Events, rows
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.errors import PlanError
from wattline.loop.runlog import Log, Round, read_begins


class Replay:
    """A backend that tells what a *log* says and insists on the decisions of that log.

    `run(Replay(log), policy, ...)` with the policy, placer, models and seed of the log gives the
    same log again; any other decision raises `PlanError` with the first difference. A log that went on
    from somewhere `begins` there.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        *self._rounds, self._last = list(log)
        self.begins = read_begins(log)
        if self.begins is not None and len(self.begins.queue):
            del self._rounds[0]  # who was there: nobody decided that
        self._at = -1
        self._applied: Actions = NO_ACTIONS

    @property
    def jobs(self) -> Jobs:
        """The jobs of the log."""
        return self._log.jobs

    @property
    def nodes(self) -> Nodes:
        """The machines of the log."""
        return self._log.nodes

    def wait(self, until_s: float, wake: frozenset[int] = EVERY_EVENT) -> tuple[float, Events]:
        """The next round of the log, whatever *until_s*: a tick that changed nothing is not in it."""
        self._insist()
        self._at += 1
        self._applied = NO_ACTIONS
        if self._at == len(self._rounds):
            return math.inf, rows()
        now = self._rounds[self._at]
        return now.now_s, rows(*now.events)

    def apply(self, actions: Actions) -> None:
        """Remember what was decided, to be held against the log."""
        self._applied = actions

    def idle(self) -> bool:
        """Whether the log has no more rounds."""
        return self._at >= len(self._rounds) - 1

    def close(self) -> Events:
        """The last readings of the log."""
        self._insist()
        return rows(*self._last.events)

    def describe(self) -> dict[str, Any]:
        """What the log's header says of the backend that wrote it."""
        known = ("version", "policy", "place", "models", "seed", "trace")
        return {key: value for key, value in self._log.header.items() if key not in known}

    def _insist(self) -> None:
        if not 0 <= self._at < len(self._rounds):
            return
        then: Round = self._rounds[self._at]
        if not np.array_equal(then.actions, self._applied):
            raise PlanError(
                f"at {then.now_s} s the log has {len(then.actions)} actions {then.actions.tolist()[:3]}, "
                f"now {len(self._applied)} were decided {self._applied.tolist()[:3]}",
                hint="replay needs the policy, placer, models and seed of the log's header",
            )
