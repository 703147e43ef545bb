"""Power caps of attempts, and a bound of their sum while attempts are stopped, started and retuned.

A plan keeps within the bound, but an attempt that it stops draws power until its processes have ended. Starts
and higher caps that would exceed the bound until then wait for that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.attempt_table import AttemptTable
from wattline.backend.engine.job_exits import OnEvent
from wattline.backend.engine.job_queue import JobQueue
from wattline.backend.engine.job_spec import AttemptSettings
from wattline.backend.engine.protocol import Engine

ALL_TEAMS = ""
"""Key of the bound of the whole cluster, which counts the draw of idle GPUs, too."""
_SAME_W = 0.5

_logger = logging.getLogger(__name__)


class CapLimits:
    """Sets the caps of attempts, by the policy's settings and the limits of users."""

    def __init__(self, engine: Engine, queue: JobQueue, attempts: AttemptTable, on_event: OnEvent) -> None:
        self._engine, self._queue, self._attempts, self._on_event = engine, queue, attempts, on_event
        self._waiting: dict[AttemptRecord, AttemptSettings] = {}  # retunes to a higher cap
        self.watts: Mapping[str, float] = {}  # by team; empty: caps are not bounded

    def apply_user_limit(self, job: str, settings: AttemptSettings) -> AttemptSettings:
        """Return the settings with the lower of the policy's cap and the user's; either may be unset."""
        limits = (settings.cap_w, self._queue.records[job].spec.power_w)
        return replace(settings, cap_w=min((round(watts) for watts in limits if watts), default=0))

    def find_blockers(self, attempt: AttemptRecord) -> list[AttemptRecord]:
        """Return the attempts that must end before *attempt*, which is not in the table, may start."""
        return self._find_stopping() if self._exceeds([attempt], {}) else []

    def retune(self, changes: Sequence[tuple[AttemptRecord, AttemptSettings]]) -> None:
        """Change the settings of attempts: lower caps first, and higher ones as soon as there is room."""
        wanted = [(one, self.apply_user_limit(one.jobs[0], settings)) for one, settings in changes]
        for attempt, settings in sorted(wanted, key=lambda pair: self._raises(*pair)):
            self._waiting.pop(attempt, None)
            if self._raises(attempt, settings) and self._exceeds([], {attempt: settings.cap_w}):
                self._waiting[attempt] = settings
                settings = replace(settings, cap_w=attempt.settings.cap_w)
            self._apply(attempt, settings)

    def apply_waiting(self) -> None:
        """Raise the caps that there is room for by now."""
        for attempt, settings in list(self._waiting.items()):
            if attempt not in self._attempts.attempts or attempt.preempted:
                del self._waiting[attempt]
            elif not self._exceeds([], {attempt: settings.cap_w}):
                del self._waiting[attempt]
                self._apply(attempt, settings)

    def _apply(self, attempt: AttemptRecord, settings: AttemptSettings) -> None:
        attempt.settings = settings
        if not self._engine.retune(attempt):
            _logger.debug("not all settings of %s could be changed", attempt.folder)
        if attempt.started:
            for job in attempt.jobs:
                self._on_event("retuned", job, {"cap_w": attempt.effective_cap_w, "cpus": attempt.cpus})

    def _raises(self, attempt: AttemptRecord, settings: AttemptSettings) -> bool:
        return self._cap_w(attempt, settings.cap_w) > self._cap_w(attempt, attempt.settings.cap_w)

    def _cap_w(self, attempt: AttemptRecord, cap_w: float) -> float:
        return cap_w or self._engine.gpu_model(attempt.node)[1]

    def _find_stopping(self) -> list[AttemptRecord]:
        return [attempt for attempt in self._attempts.attempts if attempt.preempted and attempt.started]

    def _exceeds(self, more: Sequence[AttemptRecord], caps_w: Mapping[AttemptRecord, float]) -> bool:
        """Return whether caps exceed a bound while attempts are being stopped; else a plan keeps it."""
        if not self.watts or not self._find_stopping():
            return False
        return any(self._sum_w(team, more, caps_w) > watts + _SAME_W for team, watts in self.watts.items())

    def _sum_w(
        self, team: str, more: Sequence[AttemptRecord], caps_w: Mapping[AttemptRecord, float]
    ) -> float:
        nodes, records = self._engine.nodes, self._queue.records
        total_w = float(nodes.idle_node_w.sum()) if team == ALL_TEAMS else 0.0
        places: dict[tuple[object, ...], float] = {}  # attempts that are packed on the same GPUs count once
        for attempt in (*self._attempts.attempts, *more):
            if team != ALL_TEAMS and all(records[job].team != team for job in attempt.jobs):
                continue
            place = (attempt.allocation, attempt.gpus) if attempt.gpus else (attempt.allocation, id(attempt))
            cap_w = self._cap_w(attempt, caps_w.get(attempt, attempt.settings.cap_w))
            idle_w = nodes.idle_w if team == ALL_TEAMS else 0.0 * nodes.idle_w
            own_w = sum(count * (cap_w - float(idle_w[node])) for node, count in attempt.allocation)
            places[place] = max(places.get(place, 0.0), own_w)
        return total_w + sum(places.values())
