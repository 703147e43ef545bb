"""Counters of the service that grow with events: joules of teams, waits and ended jobs."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable

from wattline.service.controller import Controller
from wattline.service.storage.attempt_events import AttemptEvent, read_new_attempt_events
from wattline.service.storage.usage_table import ENDS

WAIT_BOUNDS_S = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 7 * 86400.0)
"""Upper bounds of the buckets of `wattline_job_wait_seconds`."""
_PAGE = 1000


class EventCounters:
    """Counters since the start of this process, brought up to date when they are read.

    Prometheus takes a smaller value for a restart, so the joules that live jobs had used before this process
    started are left out.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._lock = threading.Lock()
        self._last_seq = controller.store.last_seq
        self._known_j: dict[str, float] = {}  # joules of a job that are counted already
        self.team_j: dict[str, float] = {}
        self.ended: Counter[str] = Counter()  # jobs, by state
        self.wait_buckets = [0] * (len(WAIT_BOUNDS_S) + 1)  # the last one is above all bounds
        self.wait_sum_s = 0.0
        for job in controller.store.live_jobs():
            if job.starts:
                energy_j = controller.live_status(job.id).get("energy_j")
                self._known_j[job.id] = float(energy_j or job.energy_j or 0.0)

    def update(self, read_running: Callable[[], Iterable[tuple[str, str, float]]]) -> None:
        """Count new events, then the joules so far of running jobs: id, team and joules of each.

        The running jobs are read after the events: a job of which the end was counted is not among them.
        """
        with self._lock:
            while True:
                events = read_new_attempt_events(self._controller.store, self._last_seq, _PAGE)
                for event in events:
                    self._count(event)
                    self._last_seq = event.seq
                if len(events) < _PAGE:
                    break
            for job, team, energy_j in read_running():
                self._add(job, team, energy_j)

    def _count(self, event: AttemptEvent) -> None:
        if event.kind == "started" and event.data.get("attempt") == 1:
            wait_s = max(event.at_s - event.submit_s, 0.0)
            self.wait_buckets[bisect_left(WAIT_BOUNDS_S, wait_s)] += 1
            self.wait_sum_s += wait_s
        if event.kind in ENDS:
            energy_j = event.data.get("energy_j")
            if energy_j is not None:
                self._add(event.job, event.team, float(energy_j))
        if event.kind == "ended":
            self.ended[str(event.data["state"])] += 1
            self._known_j.pop(event.job, None)

    def _add(self, job: str, team: str, energy_j: float) -> None:
        known_j = self._known_j.get(job, 0.0)
        if energy_j > known_j:
            self.team_j[team] = self.team_j.get(team, 0.0) + energy_j - known_j
            self._known_j[job] = energy_j
