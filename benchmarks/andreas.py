"""ANDREAS: one decision at N = 100 nodes and J = 450 jobs, and the gap of the heuristics.

python benchmarks/andreas.py

Jobs and costs are those of the public data (`$WATTLINE_DATA/andreas`): "servers" has TESLA nodes of 4 GPUs
and TURING nodes of 2, "datacenter" K80 and M60 nodes of 8. Due dates and weights are drawn as the generator
of its authors does; a random part of each job is done.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

from wattline.optimize.exact import solve
from wattline.optimize.greedy import greedy, randomised
from wattline.optimize.instance import Instance, check_assignment
from wattline.optimize.objective import rolling, to_the_end
from wattline.optimize.search import improve
from wattline.papers.andreas_scenarios import SERVICE, read_rows, read_times

DATA = Path(os.environ.get("WATTLINE_DATA", "../shared/data")) / "andreas"


def draw_instance(scenario: str, nodes: int, jobs: int, seed: int) -> Instance:
    """Return a random instance in the middle of a busy day."""
    rng = np.random.default_rng(seed)
    known = read_times(DATA, scenario)
    if scenario == "servers":
        kinds, gpus = ("TESLA", "TURING"), (4, 2)
        price = {
            (row["GPUtype"], int(row["nGPUs"])): float(row["PowerConsumption[W]"]) / 1000 * 0.17168313 * 1.33
            for row in read_rows(DATA / "GPU-cost_server_4-2.csv")
        }
    else:
        kinds, gpus = ("K80", "M60"), (8, 8)
        price = {
            (row["GPUtype"], int(row["nGPUs"])): float(row["cost"])
            for row in read_rows(DATA / "GPU-cost_server.csv")
        }
    configs = sorted({config for of_job in known.values() for config in of_job if config[0] in kinds})
    cost_per_s = np.zeros((2, max(gpus) + 1))
    for (name, used), per_h in price.items():
        if name in kinds and used <= gpus[kinds.index(name)]:
            cost_per_s[kinds.index(name), used] = per_h / 3600
    drawn = [list(known.values())[k] for k in rng.integers(len(known), size=jobs).tolist()]
    left_s = np.array([[of_job.get(config, np.inf) for config in configs] for of_job in drawn])
    whole_s = left_s.copy()
    left_s = left_s * rng.uniform(0.1, 1.0, (jobs, 1))
    finite = np.where(np.isfinite(whole_s), whole_s, np.nan)
    since_s = rng.uniform(0, np.nanmax(finite, axis=1))
    return Instance(
        now_s=0.0,
        node_counts=np.array([(nodes + 1) // 2, nodes // 2]),
        gpus=np.array(gpus),
        cost_per_s=cost_per_s,
        config_node_type=np.array([kinds.index(name) for name, _ in configs]),
        config_gpus=np.array([count for _, count in configs]),
        left_s=left_s,
        due_s=rng.uniform(np.nanmin(finite, axis=1), np.nanmax(finite, axis=1)) - since_s,
        late_per_s=rng.uniform(*SERVICE, jobs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"{DATA} is missing: set WATTLINE_DATA")
    names = (
        "scenario",
        "nodes",
        "jobs",
        "objective",
        "exact s",
        "(most)",
        "gap",
        "RG(1000) s",
        "greedy",
        "RG",
        "RG+LS",
        "LS s",
    )
    print(" ".join(f"{name:>10}" for name in names))
    for scenario in ("servers", "datacenter"):
        for nodes, jobs in ((4, 10), (10, 36), (100, 450)):
            for objective in (to_the_end, rolling):
                found = []
                for seed in range(args.seeds):
                    instance = draw_instance(scenario, nodes, jobs, seed)
                    charges = objective(instance)
                    before = time.process_time()
                    best = solve(instance, charges)
                    middle = time.process_time()
                    tried = randomised(instance, charges, 1000, seed)
                    after = time.process_time()
                    first = greedy(instance, charges)
                    if best is None:
                        found.append((middle - before, np.nan, after - middle, *[np.nan] * 4))
                        continue
                    check_assignment(instance, best)
                    before_s = time.process_time()
                    searched = improve(instance, charges, randomised(instance, charges, 100, seed))
                    search_s = time.process_time() - before_s
                    off = [assignment.cost / best.cost - 1 for assignment in (first, tried, searched)]
                    found.append((middle - before, best.gap, after - middle, *off, search_s))
                cpu_s, gap, tries_s, one, many, better, search_s = np.array(found).T
                words = (scenario, nodes, jobs, objective.__name__)
                numbers = (f"{np.median(cpu_s):.2f}", f"({cpu_s.max():.2f})", f"{np.nanmax(gap):.1e}")
                numbers += (
                    f"{np.median(tries_s):.3f}",
                    f"{np.nanmedian(one):.1%}",
                    f"{np.nanmedian(many):.1%}",
                )
                numbers += (f"{np.nanmedian(better):.1%}", f"{np.nanmedian(search_s):.2f}")
                print(" ".join(f"{word!s:>10}" for word in (*words, *numbers)))


if __name__ == "__main__":
    main()
