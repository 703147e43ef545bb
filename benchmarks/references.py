"""Compare with the results of published simulators on the same inputs: ours beside theirs.

    WATTLINE_DATA=../shared/data python benchmarks/references.py [T1 G1 ...]

Their figures are means of job completion times in seconds, or makespans, of runs of the authors' programs.
Exits with 1 if one is missed.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.pollux_durations import ALONE_S
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import parse_cluster
from wattline.core.events import EVENT_AT_S, EVENT_JOB, EVENT_VERB, FINISHED
from wattline.core.jobs import Jobs
from wattline.core.protocols import Models
from wattline.loop.run import run
from wattline.models import TraceModels
from wattline.models.library import library
from wattline.models.throughput_table import read_throughput_table
from wattline.placement.pack import Pack
from wattline.policy.parser import parse_policy
from wattline.trace import read_trace

DATA = Path(os.environ.get("WATTLINE_DATA", "../shared/data"))
FREE = Overheads(start_s=0.0, restart_s=0.0)
MIXED = "1xv100:8+2xp100:8+3xk80:8"
T4 = "16xt4:4"
WORKLOADS = range(1, 9)


@dataclass(frozen=True)
class Reference:
    """One published result; *within* is the relative tolerance."""

    what: str
    theirs: float
    within: float
    ours: Callable[[], float]


def read_durations(workload: int, more_s: float = 0.0) -> Jobs:
    """Return Pollux' workload with its durations alone, and *more_s* added."""
    text = (DATA / f"pollux/workloads/workload-{workload}.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    gpus = [int(row["num_replicas"]) for row in rows]
    alone_s = [ALONE_S[row["application"]][n] + more_s for row, n in zip(rows, gpus, strict=True)]
    return Jobs.of(submit_s=[float(row["time"]) for row in rows], gpus=gpus, duration_s=alone_s)


def read_elastic(workload: int) -> Jobs:
    """Return Pollux' workload with models and the same durations; ncf stays on one GPU."""
    jobs = read_trace(DATA / f"pollux/workloads/workload-{workload}.csv")
    words = jobs.model.words()
    alone_s = np.array([ALONE_S[word][gpus] for word, gpus in zip(words, jobs.gpus.tolist(), strict=True)])
    most = np.array([1 if word == "ncf" else 0 for word in words])
    return replace(jobs, step_s=alone_s / jobs.steps, max_gpus=most)


def simulate(
    jobs: Jobs,
    policy: str,
    cluster: str,
    *,
    models: Models | None = None,
    quantum_s: float | None = None,
    overheads: Overheads = FREE,
    backfill: str = "greedy",
) -> tuple[float, float]:
    """Return the mean job completion time and the makespan."""
    models = TraceModels() if models is None else models
    sim = Sim(jobs, parse_cluster(cluster), truth=models, quantum_s=quantum_s, overheads=overheads)
    log = run(sim, parse_policy(policy), models, place=Pack(backfill))
    ended = log.events[log.events[:, EVENT_VERB] == FINISHED]
    if len(ended) != len(jobs):
        raise SystemExit(f"{policy} on {cluster}: {len(ended)} of {len(jobs)} jobs ended")
    jct_s = ended[:, EVENT_AT_S] - jobs.submit_s[ended[:, EVENT_JOB].astype(np.int64)]
    return float(jct_s.mean()), float(ended[:, EVENT_AT_S].max())


def run_tiresias(policy: str, quantum_s: float | None = None) -> float:
    return simulate(read_durations(6), policy, T4, quantum_s=quantum_s)[0]


def run_pollux_tiresias() -> float:
    """Return the mean of eight workloads; each allocation costs 30 s, the first too."""
    policy = "tiresias:thresholds=57600,promote=0,within=submission"
    costs = Overheads(restart_s=30.0)
    means = [
        simulate(read_durations(k, 30.0), policy, T4, quantum_s=60.0, overheads=costs)[0] for k in WORKLOADS
    ]
    return float(np.mean(means))


def run_pollux() -> float:
    """Return the mean of eight workloads; jobs start with one GPU and know only what they have used."""
    costs, models = Overheads(start_s=30.0, restart_s=30.0), library()
    means = [
        simulate(
            read_elastic(k),
            "pollux:explore=2",
            T4,
            models=models,
            quantum_s=60.0,
            overheads=costs,
            backfill="easy",
        )[0]
        for k in WORKLOADS
    ]
    return float(np.mean(means))


def run_gavel(trace: str, policy: str, cluster: str, column: int = 0) -> float:
    table = read_throughput_table(str(DATA / "gavel/simulation_throughputs.json.gz"))
    jobs = table.time_jobs(read_trace(DATA / f"gavel/traces/{trace}.trace"))
    return simulate(jobs, policy, cluster, models=table)[column]


QUEUES = "tiresias:thresholds=3250/7200,promote=0,quantum=1"
FAIR, LAST = "max_min_fairness", "minimize_makespan"
REFERENCES = {
    "T1": Reference("Tiresias, fjf", 5565.8, 1e-4, lambda: run_tiresias("fifo")),
    "T2": Reference("Tiresias, shortest-gpu", 2628.6, 1e-4, lambda: run_tiresias("srsf")),
    "T3": Reference("Tiresias, dlas-gpu, clock corrected", 3578, 0.01, lambda: run_tiresias(QUEUES, 1.0)),
    "T3s": Reference(
        "the same, by submission", 6950.5, 0.01, lambda: run_tiresias(f"{QUEUES},within=submission")
    ),
    "P1": Reference("Pollux' Tiresias, mean of 8 workloads", 4038, 0.02, run_pollux_tiresias),
    "P5": Reference("Pollux, mean of 8 workloads", 2751, 0.05, run_pollux),
    "P5/P1": Reference("Pollux / Tiresias", 0.68, 0.04 / 0.68, lambda: run_pollux() / run_pollux_tiresias()),
    "G1": Reference("Gavel, max_min_fairness_perf", 14623, 0.02, lambda: run_gavel(FAIR, "gavel", MIXED)),
    "G2": Reference(
        "Gavel, max_min_fairness", 19989, 0.03, lambda: run_gavel(FAIR, "gavel:speeds=equal", MIXED)
    ),
    "G3": Reference(
        "Gavel, finish_time_fairness_perf", 15010, 0.02, lambda: run_gavel(FAIR, "gavel:objective=ftf", MIXED)
    ),
    "G4": Reference(
        "Gavel, min_total_duration_perf, makespan",
        64721,
        0.02,
        lambda: run_gavel(LAST, "gavel:objective=makespan", MIXED, 1),
    ),
    "G5": Reference(
        "Gavel, min_total_duration, makespan",
        76635,
        0.02,
        lambda: run_gavel(LAST, "gavel:objective=makespan,speeds=equal", MIXED, 1),
    ),
    "G6": Reference(
        "Gavel, fifo_perf", 22713, 0.02, lambda: run_gavel(FAIR, "gavel:objective=fifo", "3xv100:8")
    ),
    "G7": Reference(
        "Gavel, fifo_perf every round",
        19173,
        0.02,
        lambda: run_gavel(FAIR, "gavel:objective=fifo,reset=0", "3xv100:8"),
    ),
}


def main(names: list[str]) -> int:
    missed = 0
    print(f"{'':6} {'':42} {'ours':>9} {'theirs':>9} {'differs':>8} {'allowed':>8}")
    for name, reference in REFERENCES.items():
        if names and name not in names:
            continue
        ours = reference.ours()
        differs = ours / reference.theirs - 1
        met = abs(differs) <= reference.within
        missed += not met
        digits = 3 if reference.theirs < 10 else 1
        print(
            f"{name:6} {reference.what:42} {ours:9,.{digits}f} {reference.theirs:9,.{digits}f}"
            f" {differs:+8.2%} {reference.within:8.2%} {'met' if met else 'MISSED'}",
            flush=True,
        )
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
