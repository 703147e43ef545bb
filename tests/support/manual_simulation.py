"""Simulator driven by single actions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wattline.backend.sim.simulator import Sim
from wattline.core.actions import RETUNE, START, STOP
from wattline.core.events import (
    EVENT_ENERGY_J,
    EVENT_VERB,
    FINISHED,
    METERED,
    WAKE_EVENTS,
    Event,
    list_events,
)
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes


def build_measured_jobs(**columns: Any) -> Jobs:
    """Return a resnet50 job of 1000 s on four GPUs, or other jobs, all submitted at time 0."""
    row = {"gpus": [4], "duration_s": [1000.0], "model": ["resnet50"], "batch": [256], **columns}
    return Jobs.of(submit_s=[0.0] * len(row["gpus"]), **row)


class ManualSimulation:
    """Simulation driven by single actions; collects all events."""

    def __init__(self, jobs: Jobs, cluster: Nodes, **sim: Any) -> None:
        self.sim = Sim(jobs, cluster, **sim)
        self.events: list[Event] = []

    def advance_to(self, at_s: float) -> None:
        """Advance the time to *at_s*."""
        now_s = -math.inf
        while now_s < at_s:
            now_s, events = self.sim.wait(at_s)
            self.events += list_events(events)

    def finish(self, job: int = 0) -> Event:
        """Run until a job finishes and return that event."""
        while FINISHED not in [event.verb for event in self.events if event.job == job]:
            self.events += list_events(self.sim.wait(math.inf)[1])
        return self.last_event(FINISHED, job)

    def read_meter(self, at_s: float) -> list[float]:
        """Return the joules of the cluster and of each team at *at_s*."""
        self.advance_to(at_s)
        _, events = self.sim.wait(at_s, WAKE_EVENTS | {METERED})
        self.events += list_events(events)
        return events[events[:, EVENT_VERB] == METERED, EVENT_ENERGY_J].tolist()

    def start(self, job: int, gpus: int, *, node: int = 0, group: int = -1, cap_w: int = 0) -> None:
        """Start a job, alone or in the *group* of another job."""
        self._apply(START, job, job if group < 0 else group, node, gpus, cap_w, 0)

    def stop(self, job: int) -> None:
        self._apply(STOP, job, job, -1, 0, 0, 0)

    def retune(self, *jobs: int, cap_w: int) -> None:
        self.sim.apply(np.array([(RETUNE, job, jobs[0], -1, 0, cap_w, 0, 0, 0, 0) for job in jobs]))

    def switch(self, verb: int, node: int) -> None:
        self._apply(verb, -1, -1, node, 0, 0, 0)

    def _apply(self, *action: int) -> None:
        self.sim.apply(np.array([(*action, 0, 0, 0)]))

    def last_event(self, verb: int, job: int = 0) -> Event:
        return [event for event in self.events if (event.verb, event.job) == (verb, job)][-1]

    def close(self) -> float:
        """Stop the simulation and return the joules of the whole cluster."""
        return list_events(self.sim.close())[-1].energy_j
