"""Synergy's published simulations: mean JCT, and the share of jobs with the same JCT where theirs are known.

python benchmarks/anchors.py
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import wattline as wl
from wattline import policy as p
from wattline.core.jobs import Jobs
from wattline.core.protocols import Placer
from wattline.papers import Greedy, TunePublished, drf_published, ftf_published, tetris_published
from wattline.papers.synergy_experiment import simulate_ends
from wattline.papers.synergy_speedups import SynergyModels
from wattline.placement import Pack

DATA = Path(os.environ.get("WATTLINE_DATA", "../shared/data")) / "synergy"
PLACERS = {"fair": Pack("greedy"), "greedy": Greedy(), "tune": TunePublished()}
ORDERS: dict[str, Sequence[p.Stage]] = {
    "FIFO": (p.fifo, p.preempt),
    "SRTF": (p.srtf,),
    "LAS": (p.Las(),),
    "DRF": (drf_published,),
    "TETRIS": (tetris_published,),
    "FTF": (ftf_published,),
    "FTF desc.": (p.Ftf(quantum_s=300.0),),
}
PUBLISHED_H = {
    "FIFO": {"fair": 27.757, "greedy": 22.852, "tune": 22.711},
    "SRTF": {"fair": 20.897, "greedy": 18.645, "tune": 18.563},
    "LAS": {"fair": 21.921, "greedy": 19.050, "tune": 18.969},
    "DRF": {"fair": 28.010, "greedy": 28.509, "tune": 26.561},
    "TETRIS": {"fair": 20.919, "greedy": 18.645, "tune": 18.621},
    "FTF": {"fair": 53.582, "tune": 39.929},
    "FTF desc.": {"fair": 21.394, "tune": 19.509},
}


def simulate_jct_s(
    jobs: Jobs, servers: int, order: str, place: Placer, demands: bool
) -> tuple[dict[str, float], float]:
    """Return the JCT of each job by id, and the last finish."""
    policy = p.chain(*((p.Demand(keep=1.0),) if demands else ()), *ORDERS[order])
    cluster = wl.nodes("v100", count=servers, gpus=8)
    rows, at_s = simulate_ends(jobs, cluster, policy, place, SynergyModels(), rounds=True)
    jct = dict(zip(jobs.id[rows].tolist(), (at_s - jobs.submit_s[rows]).tolist(), strict=True))
    return jct, float(at_s.max())


def format_same_jobs(order: str, mechanism: str, taken: dict[str, float]) -> str:
    """Return the share of jobs with the published JCT; empty: it is not published."""
    path = DATA / f"jct_synergy_single_{order}_{mechanism}.json"
    if not path.exists():
        return ""
    theirs = json.loads(path.read_text())["jct"]
    return f"{np.mean([abs(taken[str(job)] - seconds) < 1e-6 for job, seconds in theirs]):.1%}"


def main() -> int:
    if not DATA.is_dir():
        sys.exit(f"{DATA} is missing: set WATTLINE_DATA")
    jobs = wl.read_trace(DATA / "anchor_single_1000.csv")
    print("anchor_single_1000, 16x8 V100, rounds of 300 s, free restarts, one speed-up or none")
    header = ("order", "mechanism", "mean JCT h", "published", "off by", "same jobs", "CPU s")
    print(" ".join(f"{word:>10}" for word in header))
    missed = False
    for order, by_mechanism in PUBLISHED_H.items():
        for mechanism, published_h in by_mechanism.items():
            before = time.process_time()
            demands = mechanism != "fair" or order in ("DRF", "TETRIS")
            taken, _ = simulate_jct_s(jobs, 16, order, PLACERS[mechanism], demands)
            cpu_s = time.process_time() - before
            mean_h = float(np.mean(list(taken.values()))) / 3600
            off = abs(mean_h / published_h - 1)
            same = format_same_jobs(order, mechanism, taken)
            missed |= off > 1e-3
            words = (
                order,
                mechanism,
                f"{mean_h:.3f}",
                f"{published_h:.3f}",
                f"{off:.4%}",
                same,
                f"{cpu_s:.2f}",
            )
            print(" ".join(f"{word:>10}" for word in words))
    for name, order, published_h in (
        ("static_100job_6_3_1100.0", "FIFO", (15.3, 11.1)),
        ("srtf.log", "SRTF", (19.5, 13.2)),
    ):
        trace = wl.read_trace(DATA / name)
        last_h = [
            simulate_jct_s(trace, 4, order, PLACERS[m], m != "fair")[1] / 3600 for m in ("fair", "tune")
        ]
        print(
            f"{name}, {order}, 4x8: last finish {last_h[0]:.1f} -> {last_h[1]:.1f} h, published {published_h}"
        )
        missed |= any(abs(ours - theirs) > 0.06 for ours, theirs in zip(last_h, published_h, strict=True))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
