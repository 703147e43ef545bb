"""Records of a cluster, made by simulating a known scheduler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import parse_cluster
from wattline.core.jobs import Jobs
from wattline.core.protocols import Policy
from wattline.core.table import Floats
from wattline.loop.run import run
from wattline.models.durations.estimates import DurationEstimates
from wattline.models.durations.history import History
from wattline.models.durations.limits import TimeLimits
from wattline.placement.pack import Pack
from wattline.trace import synth

CLUSTER = "4xv100:4"


def build_jobs(count: int = 300, seed: int = 3) -> Jobs:
    """Return synthetic jobs with times in whole seconds, as records have them."""
    jobs = synth(count=count, seed=seed, load=0.95, gpus_total=16, gpu_mix={1: 0.6, 2: 0.2, 4: 0.2}, users=6)
    return replace(
        jobs,
        submit_s=np.round(jobs.submit_s),
        steps=np.maximum(np.round(jobs.duration_s), 1.0),
        step_s=np.ones(len(jobs)),
        whole=np.zeros(len(jobs), dtype=np.bool_),
        deadline_s=np.full(len(jobs), np.inf),
        priority=np.zeros(len(jobs)),
    )


def set_limits(jobs: Jobs) -> Floats:
    """Return the limits that careful users set: the next of 1 h, 4 h, 1 d and 1 week."""
    steps_s = np.array((3600.0, 14_400.0, 86_400.0, 604_800.0))
    return steps_s[np.minimum(np.searchsorted(steps_s, jobs.duration_s), len(steps_s) - 1)]


def record_schedule(
    jobs: Jobs, policy: Policy, backfill: str, cluster: str = CLUSTER, start_s: float = 0.0
) -> tuple[Floats, Floats]:
    """Return start and end of every job under a scheduler that sees the limits of the jobs."""
    limit_s = set_limits(jobs)
    log = run(
        Sim(jobs, parse_cluster(cluster), overheads=Overheads(start_s=start_s)),
        policy,
        place=Pack(backfill),
        durations=lambda known: DurationEstimates(known, TimeLimits(limit_s, History(known))),
    )
    from wattline.reports.summary import build_run_tables

    outcomes = build_run_tables(log).outcomes
    return outcomes.first_start_s + start_s, outcomes.end_s


def write_records(path: Path, jobs: Jobs, start_s: Floats, end_s: Floats) -> Path:
    """Write a plain CSV with the recorded schedule, names and limits of *jobs*."""
    limit_s = set_limits(jobs)
    rows = ["id,submit_s,gpus,duration_s,team,user,key,start_s,end_s,time_limit_s,partition,name"]
    for row in range(len(jobs)):
        times = (start_s[row], end_s[row], limit_s[row])
        rows.append(
            f"j{row},{jobs.submit_s[row]:g},{jobs.gpus[row]},{jobs.duration_s[row]:g},"
            f"{jobs.team.word(row)},{jobs.user.word(row)},{jobs.key.word(row)},"
            + ",".join(f"{time:.3f}" for time in times)
            + f",gpu,train-{row % 7}"
        )
    path.write_text("\n".join((*rows, "")))
    return path
