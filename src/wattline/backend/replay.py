"""A backend that replays a run log: events are read, decisions are compared."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wattline.core.actions import (
    ACTION_GPUS,
    ACTION_JOB,
    ACTION_NODE,
    ACTION_VERB,
    ACTION_WORDS,
    NO_ACTIONS,
    POWER_OFF,
    POWER_ON,
    START,
    Actions,
)
from wattline.core.events import WAKE_EVENTS, Events, build_events
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.errors import PlanError
from wattline.loop.log_reader import read_initial_state, read_quotas
from wattline.loop.runlog import Log, Round


class Replay:
    """Backend that returns the events of *log* and requires the decisions of that log.

    `run(Replay(log), policy, ...)` with the policy, placer, models and seed of the log returns the same
    log; any other decision raises `PlanError` with the first difference. *initial_state* is the state in
    which the log starts; None: without jobs. *quotas* are those of the log.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        *self._rounds, self._last = list(log)
        self.initial_state = read_initial_state(log)
        self.quotas = read_quotas(log)
        if self.initial_state is not None and len(self.initial_state.queue):
            del self._rounds[0]  # it lists the initial state, which was not decided
        self._at = -1
        self._applied: Actions = NO_ACTIONS

    @property
    def jobs(self) -> Jobs:
        """Jobs of the log."""
        return self._log.jobs

    @property
    def nodes(self) -> Nodes:
        """Nodes of the log."""
        return self._log.nodes

    def wait(self, until_s: float, wake: frozenset[int] = WAKE_EVENTS) -> tuple[float, Events]:
        """Return the next round of the log; *until_s* is ignored: empty rounds are not logged."""
        self._compare_actions()
        self._at += 1
        self._applied = NO_ACTIONS
        if self._at == len(self._rounds):
            return math.inf, build_events()
        now = self._rounds[self._at]
        return now.now_s, build_events(*now.events)

    def apply(self, actions: Actions) -> None:
        """Keep the decision, to compare it with the log."""
        self._applied = actions

    def is_idle(self) -> bool:
        """Return whether the log has no more rounds."""
        return self._at >= len(self._rounds) - 1

    def close(self) -> Events:
        """Return the last readings of the log."""
        self._compare_actions()
        return build_events(*self._last.events)

    def describe(self) -> dict[str, Any]:
        """Return the header's description of the backend that wrote the log."""
        known = ("version", "policy", "place", "models", "seed", "trace")
        return {key: value for key, value in self._log.header.items() if key not in known}

    def _compare_actions(self) -> None:
        if not 0 <= self._at < len(self._rounds):
            return
        then: Round = self._rounds[self._at]
        if not np.array_equal(then.actions, self._applied):
            raise PlanError(
                f"at {then.now_s:g} s the decision is {self._describe(self._applied)}, "
                f"expected that of the log: {self._describe(then.actions)}",
                hint="replay needs the policy, placer, models and seed of the log's header",
            )

    def _describe(self, actions: Actions) -> str:
        """Return *actions* in words, at most three of them: `start job 7 on 4 GPUs of v100-0`."""
        if not len(actions):
            return "to change nothing"
        words = [self._describe_one(action) for action in actions[:3].tolist()]
        more = f" and {len(actions) - 3} more" if len(actions) > 3 else ""
        return f"{', '.join(words)}{more}"

    def _describe_one(self, action: list[int]) -> str:
        verb, job, node = (action[column] for column in (ACTION_VERB, ACTION_JOB, ACTION_NODE))
        word, name = ACTION_WORDS[verb].replace("_", " "), self._log.nodes.name[node]
        if verb in (POWER_OFF, POWER_ON):
            return f"{word} {name}"
        where = f" on {action[ACTION_GPUS]} GPUs of {name}" if verb == START else ""
        return f"{word} job {self._log.jobs.id[job]}{where}"
