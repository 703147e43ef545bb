"""Short simulations, and times of their starts and ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.actions import ACTION_JOB, ACTION_VERB, START
from wattline.core.events import EVENT_AT_S, EVENT_JOB, EVENT_VERB, FINISHED
from wattline.core.jobs import Jobs
from wattline.core.protocols import Placer, Policy
from wattline.loop.run import run
from wattline.loop.runlog import Log

NO_OVERHEADS = Overheads(restart_s=0.0)


def simulate(
    jobs: Jobs, policy: Policy, *, gpus: int = 1, count: int = 1, place: Placer | None = None, **sim: Any
) -> Log:
    """Simulate *jobs* on *count* nodes of *gpus* GPUs; restarts are free by default."""
    cluster = sim.pop("nodes", None) or nodes("v100", count=count, gpus=gpus)
    return run(Sim(jobs, cluster, **{"overheads": NO_OVERHEADS, **sim}), policy, place=place)


def finish_times(log: Log) -> dict[str, float]:
    """Return the time at which each job finished, by id."""
    done = log.events[log.events[:, EVENT_VERB] == FINISHED]
    return {
        str(log.jobs.id[int(job)]): at_s
        for job, at_s in zip(done[:, EVENT_JOB], done[:, EVENT_AT_S], strict=True)
    }


def started_jobs(log: Log) -> list[str]:
    """Return the ids of started jobs, in order."""
    rows = log.actions[:, ACTION_VERB] == START
    return [str(log.jobs.id[job]) for job in log.actions[rows, ACTION_JOB]]


def first_start_times(log: Log) -> dict[str, float]:
    """Return the time of the first start of each job, by id."""
    rows = np.flatnonzero(log.actions[:, ACTION_VERB] == START)[::-1]
    return {str(log.jobs.id[log.actions[r, ACTION_JOB]]): float(log.action_s[r]) for r in rows}
