"""Speed of the simulator: CPU seconds, jobs per CPU-second, peak memory, and ratios to a bare loop.

    python benchmarks/speed.py [--trace FILE] [--jobs N] [--cluster 320xv100:8] [--policy fifo ...]
    python benchmarks/speed.py --growth
    python benchmarks/speed.py --million

The trace defaults to Philly's 82,247 jobs in $WATTLINE_DATA; `--jobs` takes the first N of them, and
`--from` begins later. Ratios are taken in one process, one run after the other, because absolute times
on shared machines mean little. Without `--models` the speed of a job grows with its GPUs without limit:
elastic policies then spread few jobs over all nodes. `--fixed` limits each job to the GPUs it requested.
`--growth` measures the cost of ten times the jobs at the same load, `--million` the memory of 10^6 jobs.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from bare import simulate_bare_fifo

import wattline as wl

DATA = Path(os.environ.get("WATTLINE_DATA", "../shared/data"))
PHILLY = DATA / "philly" / "philly_jobs.csv.gz"
ORDERED = ["fifo", "srtf", "las", "tiresias"]
ELASTIC = ["pollux", "afs", "powerflow", "andreas"]


def measure_cpu_s(jobs: wl.Jobs, cluster: wl.Nodes, policy: str) -> tuple[float, wl.Log]:
    sim = wl.Sim(jobs, cluster)
    rule = wl.parse_policy(policy)
    before = time.process_time()
    log = wl.run(sim, rule)
    return time.process_time() - before, log


def measure_bare_cpu_s(jobs: wl.Jobs, cluster: wl.Nodes) -> float:
    columns = jobs.submit_s.tolist(), jobs.gpus.tolist(), jobs.duration_s.tolist()
    before = time.process_time()
    simulate_bare_fifo(*columns, int(cluster.gpus.sum()))
    return time.process_time() - before


def print_speed(trace: str, cluster_text: str, policies: list[str], rows: slice, fixed: bool = False) -> None:
    before = time.process_time()
    jobs = wl.read_trace(trace).take(rows)
    if fixed:
        jobs = replace(jobs, max_gpus=jobs.gpus.copy())
    cluster = wl.parse_cluster(cluster_text)
    cpu_s = time.process_time() - before
    print(f"{Path(trace).name}: {len(jobs)} jobs, read in {cpu_s:.2f} CPU s; {cluster_text}")
    words = ("CPU s", "jobs/CPU s", "rounds", "actions", "peak MB", "x bare")
    print(f"{'policy':10}", *(f"{word:>10}" for word in words))
    for policy in policies:
        measure_cpu_s(jobs.take(slice(0, 50)), cluster, policy)  # load the compiled kernels
        bare = measure_bare_cpu_s(jobs, cluster)
        cpu, log = measure_cpu_s(jobs, cluster, policy)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rate = len(jobs) / cpu
        numbers = (
            f"{cpu:.2f}",
            f"{rate:.0f}",
            len(log),
            len(log.actions),
            f"{peak:.0f}",
            f"{cpu / bare:.1f}",
        )
        print(f"{policy:10}", *(f"{number:>10}" for number in numbers))
        print(f"{'  bare':10} {bare:10.2f} {len(jobs) / bare:10.0f}")


def repeat_jobs(jobs: wl.Jobs, times: int) -> wl.Jobs:
    """Repeat the jobs, each time after the last of them has ended."""
    period_s = float(jobs.submit_s[-1] + jobs.duration_s.sum() / 64 + jobs.duration_s.max())
    return wl.Jobs.of(
        submit_s=np.concatenate([jobs.submit_s + turn * period_s for turn in range(times)]),
        gpus=np.tile(jobs.gpus, times),
        duration_s=np.tile(jobs.duration_s, times),
    )


def print_million(trace: str, cluster_text: str, policies: list[str]) -> None:
    """Print speed and peak memory of 10^6 jobs: the trace, again and again."""
    jobs = wl.read_trace(trace)
    times = -(-1_000_000 // len(jobs))
    period_s = float(jobs.submit_s[-1]) + 86400.0
    jobs = wl.Jobs.of(
        submit_s=np.concatenate([jobs.submit_s + turn * period_s for turn in range(times)])[:1_000_000],
        gpus=np.tile(jobs.gpus, times)[:1_000_000],
        duration_s=np.tile(jobs.duration_s, times)[:1_000_000],
    )
    for policy in policies:
        cpu, _ = measure_cpu_s(jobs, wl.parse_cluster(cluster_text), policy)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{policy}: {len(jobs)} jobs, {len(jobs) / cpu:.0f} jobs/CPU s, peak {peak:.0f} MB")


def print_growth(policies: list[str]) -> None:
    cluster = wl.parse_cluster("16xv100:8")
    measure_cpu_s(wl.synth(count=200, seed=0), cluster, "fifo")  # load the compiled kernels
    print("ten times the jobs, 128 GPUs, CPU ratio of three seeds")
    print("  repeated: the same 3,000 synthetic jobs (load 0.9) once, and ten times one after the other")
    print("  longer:   3,000 and 30,000 synthetic jobs at load 0.8, where the queue grows with the trace")
    for policy in policies:
        again, longer = [], []
        for seed in range(3):
            jobs = wl.synth(count=3_000, seed=seed, load=0.9)
            once, often = (measure_cpu_s(repeat_jobs(jobs, times), cluster, policy)[0] for times in (1, 10))
            again.append(often / once)
            short, long = (
                measure_cpu_s(wl.synth(count=n, seed=seed), cluster, policy)[0] for n in (3_000, 30_000)
            )
            longer.append(long / short)
        for name, ratios in (("repeated", again), ("longer", longer)):
            print(f"{policy:10} {name:9} x {np.mean(ratios):5.1f} ({', '.join(f'{r:.1f}' for r in ratios)})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace", default=str(PHILLY))
    parser.add_argument("--cluster", default="320xv100:8")
    parser.add_argument("--policy", action="append", help=f"default: {' '.join(ORDERED + ELASTIC)}")
    parser.add_argument("--jobs", type=int, help="number of jobs; default: all")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first job")
    parser.add_argument("--fixed", action="store_true", help="no job gets more GPUs than it requested")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--million", action="store_true")
    args = parser.parse_args()
    if args.growth:
        print_growth(args.policy or ORDERED)
        return 0
    if not Path(args.trace).exists():
        sys.exit(f"{args.trace} is missing: set WATTLINE_DATA or --trace")
    if args.million:
        print_million(args.trace, args.cluster, args.policy or ["fifo"])
    else:
        rows = slice(args.first, None if args.jobs is None else args.first + args.jobs)
        print_speed(args.trace, args.cluster, args.policy or ORDERED + ELASTIC, rows, args.fixed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
