"""Fair share of two users, one of which submits ten times as many jobs, and what it costs in mean JCT.

    python benchmarks/fairshare.py

Both users submit in the first hour. While both have jobs waiting, each should get half of the GPU hours.
"""

from __future__ import annotations

import time

import numpy as np

from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.events import EVENT_AT_S, EVENT_JOB, EVENT_VERB, FINISHED
from wattline.core.jobs import Jobs
from wattline.core.table import Floats
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.policy.parser import parse_policy
from wattline.reports.data.lease_intervals import collect_lease_intervals

HEAVY, LIGHT, GPUS = 1500, 150, 8
POLICIES = (
    "priority+keep",
    "priority+fairshare+keep",
    "srtf",
    "srtf+fairshare",
    "afs",
    "fairshare+afs",
    "pollux",
    "fairshare+pollux",
    "powerflow",
    "fairshare+powerflow",
)


def build_jobs(seed: int = 0) -> Jobs:
    """Return the jobs of both users: one to four GPUs, half an hour on average."""
    rng = np.random.default_rng(seed)
    count = HEAVY + LIGHT
    return Jobs.of(
        submit_s=rng.uniform(0.0, 3600.0, count),
        gpus=rng.choice((1, 1, 2, 4), count),
        duration_s=rng.exponential(1800.0, count),
        user=["heavy"] * HEAVY + ["light"] * LIGHT,
    )


def measure(log: Log, jobs: Jobs) -> tuple[float, Floats, Floats]:
    """Return when the last job of light first started, the GPU hours of both by then, and their mean JCT."""
    held = collect_lease_intervals(log)
    start_s, end_s, user = held.start_s, held.end_s, jobs.user.codes[held.job]
    light = jobs.user.names.index("light")
    first_s = np.full(len(jobs), np.inf)
    np.minimum.at(first_s, held.job, start_s)
    until_s = float(first_s[jobs.user.codes == light].max())
    hours = held.gpus * np.clip(np.minimum(end_s, until_s) - start_s, 0.0, None) / 3600.0
    ended = log.events[log.events[:, EVENT_VERB] == FINISHED]
    row = ended[:, EVENT_JOB].astype(np.int64)
    jct_s = ended[:, EVENT_AT_S] - jobs.submit_s[row]
    order = (jobs.user.names.index("heavy"), light)
    return (
        until_s,
        np.array([hours[user == code].sum() for code in order]),
        np.array([jct_s[jobs.user.codes[row] == code].mean() for code in order]),
    )


def main() -> None:
    """Print one row per policy."""
    jobs = build_jobs()
    print(f"{HEAVY} jobs of heavy, {LIGHT} of light, {GPUS} GPUs")
    print("policy                    GPU h heavy  light  until both wait   mean JCT h  heavy  light  CPU s")
    for text in POLICIES:
        start_s = time.process_time()
        log = run(Sim(jobs, nodes("v100", count=1, gpus=GPUS)), parse_policy(text))
        cpu_s = time.process_time() - start_s
        until_s, hours, jct_s = measure(log, jobs)
        mean_h = (jct_s @ np.array((HEAVY, LIGHT))) / (HEAVY + LIGHT) / 3600.0
        print(
            f"{text:<25} {hours[0]:11.1f} {hours[1]:6.1f} {until_s / 3600.0:14.1f} h {mean_h:12.2f}"
            f" {jct_s[0] / 3600.0:6.2f} {jct_s[1] / 3600.0:6.2f} {cpu_s:6.1f}"
        )


if __name__ == "__main__":
    main()
