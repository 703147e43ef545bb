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
import math
import sys
import time
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from andreas import DATA, SERVICE, read_rows, read_times

import wattline as wl
from wattline import policy as p
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.table import Labels

PRICE = {"servers": wl.Price.flat(0.17168313, pue=1.33), "datacenter": wl.Price.flat(1.0)}


@dataclass(frozen=True, eq=False)
class TableModels:
    """Models that read run times from the table; a combination that is not in it is not possible."""

    seconds: dict[tuple[str, str, int], float]
    alike: ClassVar[bool] = True

    def speed(self, jobs: Jobs, grants: Grants) -> np.ndarray:
        """See `wattline.core.protocols.Models`."""
        names, kinds = jobs.model.words(), grants.kind.words()
        found = []
        for job, gpus, kind in zip(grants.job.tolist(), grants.gpus.tolist(), kinds, strict=True):
            takes_s = self.seconds.get((names[job], kind, gpus), math.inf)
            found.append(jobs.duration_s[job] / takes_s)
        return np.array(found)

    def watts(self, jobs: Jobs, grants: Grants) -> np.ndarray:
        """Return NaN: the watts of the node count."""
        return np.full(len(grants), np.nan)

    def observe(self, *_: object) -> TableModels:
        """Return these models: they learn nothing."""
        return self


def build_cluster(scenario: str, count: int) -> Nodes:
    def build_nodes(kind: str, many: int, gpus: int, base_w: float, busy_w: float) -> Nodes:
        watts = {
            "base_w": base_w,
            "idle_w": 0.0,
            "busy_w": busy_w,
            "off_w": 0.0,
            "boot_s": 0.0,
            "boot_w": 0.0,
        }
        return wl.nodes(kind, count=many, gpus=gpus, **watts)

    if scenario == "servers":
        kinds = (("tesla", 4, 360.0, 170.0), ("turing", 2, 330.0, 70.0))
    else:
        per_h = {
            row["GPUtype"]: float(row["cost"])
            for row in read_rows("GPU-cost_server.csv")
            if row["nGPUs"] == "1"
        }
        kinds = (("azure-k80", 8, 0.0, 1000 * per_h["K80"]), ("azure-m60", 8, 0.0, 1000 * per_h["M60"]))
    many = ((count + 1) // 2, count // 2)
    return wl.join_nodes(
        *(build_nodes(kind, n, *rest) for (kind, *rest), n in zip(kinds, many, strict=True) if n)
    )


def draw_jobs(
    scenario: str, nodes: Nodes, count: int, load: float, weight: float, seed: int
) -> tuple[Jobs, TableModels]:
    rng = np.random.default_rng(seed)
    name = "data_server.csv" if scenario == "servers" else "data_2d10d_filtered.csv"
    known = read_times(name, "Jobs", "GpuType", "GpuNumber", "ExecutionTime")
    named = {name.partition("-")[2].upper() or name.upper(): name for name in nodes.kind.names}
    ways = {
        job: {(named[kind], gpus): s for (kind, gpus), s in of_job.items() if kind in named}
        for job, of_job in known.items()
    }
    first = nodes.kind.names[0]
    drawn = [list(ways)[k] for k in rng.integers(len(ways), size=count).tolist()]
    alone_s = np.array([ways[job][first, 1] for job in drawn])
    fastest_s = np.array([min(ways[job].values()) for job in drawn])
    slowest_s = np.array([max(ways[job].values()) for job in drawn])
    between_s = alone_s.mean() / (load * int(nodes.gpus.sum()))
    submit_s = np.concatenate(([0.0], np.cumsum(rng.exponential(between_s, count - 1))))
    jobs = Jobs.of(
        submit_s=submit_s,
        gpus=np.ones(count, dtype=np.int64),
        duration_s=alone_s,
        deadline_s=submit_s + rng.uniform(fastest_s, slowest_s),
        late_per_h=3600 * weight * rng.uniform(*SERVICE, count),
        max_gpus=np.full(count, max(gpus for of_job in ways.values() for _, gpus in of_job)),
        model=Labels.of(drawn),
    )
    table = {(job, kind, gpus): s for job, of_job in ways.items() for (kind, gpus), s in of_job.items()}
    return jobs, TableModels(table)


def simulate(
    scenario: str, jobs: Jobs, models: TableModels, nodes: Nodes, policy: object, restart_s: float
) -> wl.Report:
    price = PRICE[scenario]
    if hasattr(policy, "price"):
        policy = replace(policy, price=price)
    sim = wl.Sim(jobs, nodes, truth=models, overheads=wl.Overheads(restart_s=restart_s))
    return wl.report(wl.run(sim, policy, models, place=wl.Power(), price=price))


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


CASES = (
    ("servers", 10, 100, 0.25, 1.0), ("servers", 10, 100, 0.5, 1.0), ("servers", 10, 100, 0.8, 1.0),
    ("servers", 10, 100, 1.1, 1.0), ("servers", 10, 100, 0.8, 100.0), ("servers", 10, 100, 1.1, 100.0),
    ("datacenter", 10, 60, 0.1, 100.0), ("datacenter", 10, 60, 0.2, 100.0),
    ("datacenter", 10, 60, 0.3, 100.0),
)  # fmt: skip


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
