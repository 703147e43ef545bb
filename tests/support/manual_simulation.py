"""What does the simulator do when it is told so, one action after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wattline.backend.sim.simulator import Sim
from wattline.core.actions import RETUNE, START, STOP
from wattline.core.events import EVERY_EVENT, FINISHED, METERED, Event, each
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes


def build_measured_jobs(**columns: Any) -> Jobs:
    """A job that was measured, on four GPUs for 1000 s; or others, all submitted at 0 s."""
    row = {"gpus": [4], "duration_s": [1000.0], "model": ["resnet50"], "batch": [256], **columns}
    return Jobs.of(submit_s=[0.0] * len(row["gpus"]), **row)


class ManualSimulation:
    """A simulation told what to do by hand."""

    def __init__(self, jobs: Jobs, cluster: Nodes, **sim: Any) -> None:
        self.sim = Sim(jobs, cluster, **sim)
        self.seen: list[Event] = []

    def until(self, at_s: float) -> None:
        """Let time pass."""
        now_s = -math.inf
        while now_s < at_s:
            now_s, events = self.sim.wait(at_s)
            self.seen += each(events)

    def finish(self, job: int = 0) -> Event:
        """Go on to the end of a job."""
        while FINISHED not in [event.verb for event in self.seen if event.job == job]:
            self.seen += each(self.sim.wait(math.inf)[1])
        return self.last(FINISHED, job)

    def meter(self, at_s: float) -> list[float]:
        """Joules of the cluster and of each team by *at_s*."""
        self.until(at_s)
        _, events = self.sim.wait(at_s, EVERY_EVENT | {METERED})
        self.seen += each(events)
        return events[events[:, 0] == METERED, 5].tolist()

    def start(self, job: int, gpus: int, *, node: int = 0, group: int = -1, cap_w: int = 0) -> None:
        """Run a job, alone or with the *group* that somebody leads."""
        self._do(START, job, job if group < 0 else group, node, gpus, cap_w, 0)

    def stop(self, job: int) -> None:
        self._do(STOP, job, job, -1, 0, 0, 0)

    def retune(self, *jobs: int, cap_w: int) -> None:
        self.sim.apply(np.array([(RETUNE, job, jobs[0], -1, 0, cap_w, 0, 0, 0, 0) for job in jobs]))

    def switch(self, verb: int, node: int) -> None:
        self._do(verb, -1, -1, node, 0, 0, 0)

    def _do(self, *action: int) -> None:
        self.sim.apply(np.array([(*action, 0, 0, 0)]))

    def last(self, verb: int, job: int = 0) -> Event:
        return [event for event in self.seen if (event.verb, event.job) == (verb, job)][-1]

    def close(self) -> float:
        """Joules of the whole cluster."""
        return each(self.sim.close())[-1].energy_j
