"""ANDREAS: the cost of whole traces, in money for energy and lateness.

python benchmarks/andreas_traces.py [--seeds 3] [--only servers] [--restart 60]

Jobs and costs are those of the public data (`$WATTLINE_DATA/andreas`), drawn as the generator of its authors
does: "servers" has TESLA nodes of 4 GPUs and TURING nodes of 2, "datacenter" K80 and M60 nodes of 8; due
dates are between the fastest and the slowest run after submission. Load is the work offered on single
GPUs over the number of GPUs. Nodes without jobs are off and boot at once. All costs are read from the run's
log.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from andreas import DATA

from wattline import policy as p
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.papers import andreas_scenarios
from wattline.papers.andreas_experiment import CASES, simulate
from wattline.papers.andreas_scenarios import TableModels, read_times


def build_cluster(scenario: str, count: int) -> Nodes:
    return andreas_scenarios.build_cluster(scenario, count, DATA)


def draw_jobs(
    scenario: str, nodes: Nodes, count: int, load: float, weight: float, seed: int
) -> tuple[Jobs, TableModels]:
    return andreas_scenarios.draw_jobs(read_times(DATA, scenario), nodes, count, load, weight, seed)


def build_policies(restart_s: float) -> dict[str, object]:
    simple = {
        f"{order} {'alone' if alone else 'shared'}": p.FirstPrinciple(order, alone)
        for alone in (1, 0)
        for order in ("fifo", "edf", "priority")
    }
    return {
        **simple,
        "elasticflow": p.ElasticFlow(restart_s),
        "greedy": p.Andreas("greedy", "to_the_end", restart_s=restart_s),
        "randomised": p.Andreas("randomised", "to_the_end", tries=1000, restart_s=restart_s),
        "search": p.Andreas("search", restart_s=restart_s),
        "exact to the end": p.Andreas("exact", "to_the_end", restart_s=restart_s),
        "exact": p.Andreas(restart_s=restart_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--policy", action="append", help="part of a policy's name")
    parser.add_argument("--restart", type=float, default=0.0, help="seconds that a restart costs")
    args = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"{DATA} is missing: set WATTLINE_DATA")
    for scenario, count, many, load, weight in CASES:
        if args.only not in f"{scenario} {load:g} x{weight:g}":
            continue
        nodes = build_cluster(scenario, count)
        terms = f"load {load:g}, late x{weight:g}, restart {args.restart:g} s"
        print(f"{scenario}: {count} nodes, {many} jobs, {terms}")
        shared = []
        for name, policy in build_policies(args.restart).items():
            if args.policy and not any(part in name for part in args.policy):
                continue
            before = time.process_time()
            seen = [
                simulate(
                    scenario,
                    *draw_jobs(scenario, nodes, many, load, weight, seed),
                    nodes,
                    policy,
                    args.restart,
                )
                for seed in range(args.seeds)
            ]
            cpu_s = time.process_time() - before
            total = np.array([r.cost for r in seen])
            if "shared" in name:
                shared.append(total.mean())
            saved = (
                f"{1 - total.mean() / np.mean(shared):7.1%}" if shared and "shared" not in name else " " * 7
            )
            late = np.mean([r.tardiness_cost for r in seen])
            gap = np.nanmax([r.gap_max for r in seen] + [-1.0])
            moves = np.mean([r.restarts for r in seen])
            print(
                f"  {name:18} {total.mean():11.2f} ({total.min():.2f} to {total.max():.2f})"
                f"  late {late:10.2f}  {saved}  moves {moves:6.1f}  {cpu_s:6.1f} CPU s"
                + (f"  gap {gap:.1e}" if gap >= 0 else ""),
                flush=True,
            )


if __name__ == "__main__":
    main()
