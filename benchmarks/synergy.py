"""Synergy: published mechanisms, the improved tune, the bound, and their cost.

    python benchmarks/synergy.py                    # everything; about half an hour on two cores
    python benchmarks/synergy.py --only compare --seeds 2

*compare*: mean JCT with the improved tune against the published one, proportional shares and the bound (the
cluster as one large node), on workloads like those of Synergy's generator, in rounds with free restarts
and exact with restarts of 30 s. *saturation*: proportional over tune where the former is past
saturation. *speed*: jobs per CPU-second, and the optimum.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import lean
import numpy as np

import wattline as wl
from wattline import policy as p
from wattline.core.host_share import fill_host_shares
from wattline.core.jobs import Jobs
from wattline.core.protocols import Placer
from wattline.models.library import library
from wattline.models.sensitivity import build_sensitivity
from wattline.papers import TunePublished
from wattline.papers.synergy_experiment import (
    GPU_HOURS,
    MIXES,
    ORDERS,
    RATES,
    SIZES,
    build_policy,
    draw_workload,
    simulate_ends,
)
from wattline.papers.synergy_speedups import SynergyModels
from wattline.placement import Pack, Tune
from wattline.placement.host.optimum import allocate

DATA = Path(os.environ.get("WATTLINE_DATA", "../shared/data")) / "synergy"


class Case(NamedTuple):
    """One comparison."""

    mix: str
    sizes: str
    load: float
    seed: int
    order: str
    mode: str  # "rounds" as published, or "exact"
    models: str  # "speed-up" or "matrix"
    count: int
    servers: int


def simulate_mean_jct_h(case: Case, jobs: Jobs, place: Placer, one_node: bool = False) -> float:
    rounds = case.mode == "rounds"
    models = SynergyModels() if case.models == "speed-up" else library()
    count, gpus = (1, 8 * case.servers) if one_node else (case.servers, 8)
    cluster = wl.nodes("v100", count=count, gpus=gpus, cpus=3.0 * gpus, mem_gib=62.5 * gpus)
    row, at_s = simulate_ends(jobs, cluster, build_policy(case.order, rounds), place, models, rounds)
    return float(np.mean(at_s - jobs.submit_s[row])) / 3600


def compare(case: Case) -> tuple[Case, float, float, float, float]:
    """Return the mean JCT with proportional shares, as published, with tune, and its bound."""
    jobs = draw_workload(case.mix, case.sizes, case.load, case.count, 8 * case.servers, case.seed)
    tune = Tune("greedy", move=0.0 if case.mode == "rounds" else 0.1)
    return (
        case,
        simulate_mean_jct_h(case, jobs, Pack("greedy")),
        simulate_mean_jct_h(case, jobs, TunePublished()),
        simulate_mean_jct_h(case, jobs, tune),
        simulate_mean_jct_h(case, jobs, tune, one_node=True),
    )


def measure_saturation(task: tuple[float, int]) -> tuple[float, int, float, float]:
    """Return the mean JCT of jobs 4000-4999 of 6000 under FIFO, with proportional shares and tune."""
    rate, seed = task
    jobs = draw_workload("20/70/10", "one GPU", rate * GPU_HOURS / 128, 6000, 128, seed)
    cluster = wl.nodes("v100", count=16, gpus=8)
    found = []
    for place in (Pack("greedy"), Tune("greedy")):
        row, at_s = simulate_ends(jobs, cluster, p.fifo, place, library(), rounds=False)
        mine = (row >= 4000) & (row < 5000)
        found.append(float(np.mean(at_s[mine] - jobs.submit_s[row[mine]])) / 3600)
    return rate, seed, found[0], found[1]


def print_comparison(pool: ProcessPoolExecutor, seeds: int, count: int, servers: int) -> None:
    cases = [
        Case(mix, sizes, load, seed, name, mode, models, count, servers)
        for mode, models in (("rounds", "speed-up"), ("rounds", "matrix"), ("exact", "matrix"))
        for mix in MIXES
        for sizes in SIZES
        for load in (0.8, 1.1)
        for name in ORDERS
        for seed in range(seeds)
    ]
    results = list(pool.map(compare, cases, chunksize=2))
    print(f"\n{count} jobs on {servers}x8 V100, {seeds} seeds; mean JCT of the published tune over ours")
    print("(least over all cells), of proportional over ours, and ours over the bound (most)")
    columns = ("mode", "models", "sizes", "mix", "load", "order")
    print(" ".join(f"{word:>9}" for word in (*columns, "published", "(least)", "prop.", "bound", "(most)")))
    groups: defaultdict[tuple[object, ...], list[tuple[float, float, float]]] = defaultdict(list)
    for case, share, published, tune, bound in results:
        key = (case.mode, case.models, case.sizes, case.mix, case.load, case.order)
        groups[key].append((published / tune, share / tune, tune / bound))
    for key, rows in groups.items():
        better, gain, far = np.array(rows).T
        numbers = (better.mean(), better.min(), gain.mean(), far.mean(), far.max())
        print(" ".join(f"{word!s:>9}" for word in key), " ".join(f"{number:9.4f}" for number in numbers))
    every = np.array([row for rows in groups.values() for row in rows])
    print(
        f"all {len(every)} runs: published/ours {every[:, 0].mean():.4f} (least {every[:, 0].min():.4f}), "
        f"{np.mean(every[:, 0] < 0.9995):.1%} of runs lose by more than 0.05 %; "
        f"ours/bound {every[:, 2].mean():.4f} (most {every[:, 2].max():.4f})"
    )


def print_saturation(pool: ProcessPoolExecutor, seeds: int) -> None:
    print("\nFIFO, one-GPU jobs 20/70/10, 128 GPUs, jobs 4000-4999: proportional over tune, mean JCT h")
    tasks = [(rate, seed) for rate in RATES for seed in range(seeds)]
    by_rate: defaultdict[float, list[tuple[float, float]]] = defaultdict(list)
    for rate, _, share, tune in pool.map(measure_saturation, tasks):
        by_rate[rate].append((share, tune))
    for rate, rows in by_rate.items():
        share, tune = np.array(rows).T
        ratio = share / tune
        print(
            f"  {rate:4.1f} jobs/h, load {rate * GPU_HOURS / 128:.2f}: "
            f"{share.mean():.1f} / {tune.mean():.1f} h, "
            f"{ratio.mean():.2f}x ± {ratio.std():.2f} ({ratio.min():.2f}-{ratio.max():.2f})"
        )


def print_speed() -> None:
    jobs = wl.read_trace(DATA / "anchor_single_1000.csv")
    cluster = wl.nodes("v100", count=16, gpus=8)
    print("\nanchor_single_1000 under LAS + tune, 16x8 V100 (best of 3)")
    times = []
    for _ in range(3):
        before = time.process_time()
        jct_h = lean.simulate_mean_jct_h(jobs, 16)
        times.append(time.process_time() - before)
    print(f"  {'a lean program (lean.py)':32} {len(jobs) / min(times):8.0f} jobs/CPU-s  ({jct_h:.3f} h)")
    for name, models, quantum_s in (
        ("rounds of 300 s, one speed-up", SynergyModels(), 300.0),
        ("rounds of 300 s, matrix", library(), 300.0),
        ("exact, matrix, restarts 30 s", library(), None),
    ):
        times = []
        for _ in range(4):  # the first fills caches
            overheads = wl.Overheads(restart_s=0.0 if quantum_s else 30.0)
            sim = wl.Sim(jobs, cluster, truth=models, quantum_s=quantum_s, overheads=overheads)
            before = time.process_time()
            wl.run(sim, p.Las(), models, place=Tune("greedy"))
            times.append(time.process_time() - before)
        print(f"  {name:32} {len(jobs) / min(times[1:]):8.0f} jobs/CPU-s  (spread {times[1:]})")
    for count in (128, 5000):
        jobs = fill_host_shares(draw_workload("20/70/10", "1-8 GPUs", 1.0, count, 128, 0), cluster)
        known = build_sensitivity(library(), jobs, cluster)
        host = cluster.host.sum(axis=1) * int(np.ceil(jobs.gpus.sum() / 128))
        times = []
        for _ in range(4):
            before = time.process_time()
            best = allocate(known, known.point_sets[:, 0], jobs.gpus, host)
            times.append(time.process_time() - before)
        worth = best.speed_sum / best.bound
        print(f"  optimum for {count} jobs: {1000 * min(times[1:]):.1f} ms, {worth:.5f} of the bound")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("compare", "saturation", "speed"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    with ProcessPoolExecutor(args.jobs) as pool:
        if args.only in (None, "speed"):
            print_speed()
        if args.only in (None, "saturation"):
            print_saturation(pool, args.seeds)
        if args.only in (None, "compare"):
            print_comparison(pool, args.seeds, args.count, args.servers)


if __name__ == "__main__":
    main()
