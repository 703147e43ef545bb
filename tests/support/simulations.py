"""Small runs, told in a few words."""

from __future__ import annotations

from typing import Any

import numpy as np

from wattline.backend.sim.simulator import Overheads, Sim
from wattline.cluster import nodes
from wattline.core.actions import START
from wattline.core.events import FINISHED
from wattline.core.jobs import Jobs
from wattline.core.protocols import Placer, Policy
from wattline.loop.run import run
from wattline.loop.runlog import Log

NO_OVERHEADS = Overheads(restart_s=0.0)


def simulate(
    jobs: Jobs, policy: Policy, *, gpus: int = 1, count: int = 1, place: Placer | None = None, **sim: Any
) -> Log:
    """Run *jobs* on *count* nodes of *gpus* GPUs; restarts are free unless said otherwise."""
    cluster = sim.pop("nodes", None) or nodes("v100", count=count, gpus=gpus)
    return run(Sim(jobs, cluster, **{"overheads": NO_OVERHEADS, **sim}), policy, place=place)


def finish_times(log: Log) -> dict[str, float]:
    """When each job finished, by id."""
    done = log.events[log.events[:, 0] == FINISHED]
    return {str(log.jobs.id[int(job)]): at_s for job, at_s in zip(done[:, 1], done[:, 2], strict=True)}


def started_jobs(log: Log) -> list[str]:
    """Who was started, in order."""
    rows = log.actions[:, 0] == START
    return [str(log.jobs.id[job]) for job in log.actions[rows, 1]]


def first_start_times(log: Log) -> dict[str, float]:
    """When each job first started, by id."""
    rows = np.flatnonzero(log.actions[:, 0] == START)[::-1]
    return {str(log.jobs.id[log.actions[r, 1]]): float(log.action_s[r]) for r in rows}
