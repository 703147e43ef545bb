"""Reproduce what a real Slurm did: run short jobs, export them by sacct, and print the error of the baseline.

    python benchmarks/whatif_slurm.py --cluster 4xa100:4 [--jobs 300] [--seed 0] [--load 1.1] [--out jobs.txt]

Slurm's commands must find a cluster with accounting that is otherwise idle; --cluster describes its GPUs.
Jobs sleep; the scheduler cannot see the difference.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

from wattline.cli import main as run_command
from wattline.cluster import parse_cluster

COLUMNS = (
    "JobIDRaw,User,Account,Partition,QOS,State,Submit,Start,End,ElapsedRaw,TimelimitRaw,AllocTRES,JobName"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--load", type=float, default=1.1)
    parser.add_argument("--mean-s", type=float, default=9.0)
    parser.add_argument("--out", default="jobs.txt")
    args = parser.parse_args()
    submit_jobs(args)
    Path(args.out).write_text(export_jobs(args.jobs))
    return run_command(
        ["whatif", "--sacct", args.out, "--cluster", args.cluster, "--policies", "fifo", "sjf"]
    )


def submit_jobs(args: argparse.Namespace) -> None:
    """Submit jobs at random times, so that they ask for *load* times the GPUs."""
    draw = random.Random(args.seed)
    gpus_total = int(parse_cluster(args.cluster).gpus.sum())
    mix = (1, 1, 1, 2, 2, 4)
    every_s = sum(mix) / len(mix) * args.mean_s / gpus_total / args.load
    begin_s, due_s = time.monotonic(), 0.0
    for number in range(args.jobs):
        due_s += draw.expovariate(1 / every_s)
        time.sleep(max(0.0, begin_s + due_s - time.monotonic()))
        seconds = min(max(draw.expovariate(1 / args.mean_s), 1.0), 6 * args.mean_s)
        limit = draw.choice((1, 2, 5))
        subprocess.run(
            ["sbatch", "-J", f"train-{number % 9}", "-n1", "-N1", f"--gres=gpu:{draw.choice(mix)}",
             f"-t{limit}", "-o", "/dev/null", "--wrap", f"sleep {seconds:.2f}"],
            check=True, capture_output=True,
        )  # fmt: skip


def export_jobs(count: int) -> str:
    """Wait until *count* jobs have ended, and return their records."""
    while True:
        done = subprocess.run(
            ["sacct", "-a", "-X", "-P", "--noconvert", "-S", "now-2hours", "-o", COLUMNS],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        ended = [line for line in done.stdout.splitlines()[1:] if "|COMPLETED|" in line]
        if len(ended) >= count:
            return done.stdout
        time.sleep(2)


if __name__ == "__main__":
    sys.exit(main())
