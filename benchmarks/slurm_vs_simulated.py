"""Mean JCT of the same workload on a real Slurm on this host and in the simulator.

    python benchmarks/slurm_vs_simulated.py [--seeds 3] [--count 40]

Jobs sleep for known times, so that the load of this host changes little. The simulator gets one further
number: the seconds that a job takes beyond its sleep, measured with one job alone on the same cluster. All
figures come from the run logs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from real_vs_simulated import finish_run, read_figures

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.slurm_cluster import SlurmCluster
from wattline.backend.engine.slurm.submission import SlurmOptions
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.core.jobs import Jobs
from wattline.jobfile import read_document
from wattline.loop.log_reader import read_log
from wattline.loop.run import run
from wattline.models.library import library
from wattline.placement.parser import parse_placer
from wattline.policy.parser import parse_policy
from wattline.service.controller import Controller

NODES, GPUS = 4, 4
POLICIES = ("fifo", "sjf", "las+demand")
Job = tuple[float, int, float]  # arrival, GPUs, seconds


def draw_jobs(seed: int, count: int) -> list[Job]:
    """Return jobs that ask for somewhat more GPUs than there are."""
    rng = np.random.default_rng(seed)
    gpus = rng.choice([1, 1, 2, 4], count)
    seconds = rng.uniform(5.0, 30.0, count)
    between_s = float((gpus * seconds).mean()) / (NODES * GPUS) / 1.2
    arrivals = np.cumsum(rng.exponential(between_s, count))
    return list(zip(arrivals.tolist(), gpus.tolist(), seconds.tolist(), strict=True))


def run_on_slurm(jobs: list[Job], policy: str, folder: Path) -> Path:
    """Submit jobs when they arrive; return the log of the service."""
    served = Controller(folder, policy=policy, place="pack", slurm=SlurmOptions("main", meter="none"))
    served.start()
    began_s = time.monotonic()
    for at_s, gpus, seconds in jobs:
        time.sleep(max(began_s + at_s - time.monotonic(), 0.0))
        command = ["sleep", f"{seconds:.3f}"]
        resources = {"gpus": gpus, "time": f"{seconds + 30:.3f}s"}
        served.submit(read_document({"run": command, "resources": resources}, "job"), "", "/")
    return finish_run(served, folder)


def compare(seed: int, policy: str, count: int) -> float:
    """Return the error of the simulator's mean JCT."""
    jobs = draw_jobs(seed, count)
    with tempfile.TemporaryDirectory() as folder:
        alone = [(0.0, 1, 2.0)]
        start_s = float(read_figures(read_log(run_on_slurm(alone, policy, Path(folder) / "alone")), 1)[0][0])
        start_s -= alone[0][2]
        log = read_log(run_on_slurm(jobs, policy, Path(folder) / "all"))
    is_s, _ = read_figures(log, count)
    table = Jobs.of(
        submit_s=log.jobs.submit_s - log.jobs.submit_s[0],
        gpus=[gpus for _, gpus, _ in jobs],
        duration_s=[seconds for *_, seconds in jobs],
    )
    same = ("cpus", "mem_gib", "preemptible", "checkpoint_s", "min_runtime_s")
    table = replace(table, **{name: getattr(log.jobs, name) for name in same})
    sim = Sim(table, log.nodes, library(), overheads=Overheads(start_s=start_s))
    would_s, _ = read_figures(run(sim, parse_policy(policy), library(), place=parse_placer("pack")), count)
    error = float(would_s.mean() / is_s.mean() - 1)
    off = np.abs(would_s / is_s - 1)
    print(
        f"seed {seed} {policy:<11} mean JCT {is_s.mean():6.1f} s on Slurm, {would_s.mean():6.1f} s simulated:"
        f" {100 * error:+.1f} %; one job: {100 * np.median(off):.1f} % (median),"
        f" {100 * off.max():.1f} % (most);"
        f" a job takes {start_s:.2f} s more than its sleep",
        flush=True,
    )
    return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--policy", action="append", help=f"default {', '.join(POLICIES)}")
    args = parser.parse_args()
    with SlurmCluster(NODES, GPUS) as cluster:
        os.environ.update(cluster.environment)
        errors = [
            compare(seed, policy, args.count)
            for policy in args.policy or POLICIES
            for seed in range(args.seeds)
        ]
    print(f"mean JCT: errors of {100 * min(errors):+.1f} % to {100 * max(errors):+.1f} %, bar 10 %")


if __name__ == "__main__":
    main()
