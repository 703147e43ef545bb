"""Synergy's published simulations, job by job: mean JCT and the share of jobs with the same JCT.

python benchmarks/anchors.py
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import wattline as wl
from wattline.messages import FINISHED

DATA = Path(os.environ.get("WATTLINE_DATA", "../shared/data")) / "synergy"
ANCHORS = (("FIFO", 27.757), ("SRTF", 20.897), ("LAS", 21.921))


def main() -> int:
    if not DATA.is_dir():
        sys.exit(f"{DATA} is missing: set WATTLINE_DATA")
    jobs = wl.read_trace(DATA / "anchor_single_1000.csv")
    cluster = wl.nodes("v100", count=16, gpus=8)
    print(
        "anchor_single_1000, 16x8 V100, rounds of 300 s, proportional share, greedy backfill, free restarts"
    )
    print(f"{'policy':8} {'mean JCT h':>11} {'published':>10} {'off by':>8} {'same jobs':>10} {'CPU s':>7}")
    missed = False
    for name, published_h in ANCHORS:
        sim = wl.Sim(jobs, cluster, quantum_s=300, overheads=wl.Overheads(restart_s=0))
        before = time.process_time()
        log = wl.run(sim, wl.parse_policy(name), place=wl.Pack("greedy"))
        cpu_s = time.process_time() - before
        done = log.events[log.events[:, 0] == FINISHED]
        rows = done[:, 1].astype(int)
        jct = dict(zip(jobs.id[rows], done[:, 2] - jobs.submit_s[rows], strict=True))
        theirs = json.loads((DATA / f"jct_synergy_single_{name}_fair.json").read_text())["jct"]
        same = float(np.mean([abs(jct[str(job)] - seconds) < 1e-6 for job, seconds in theirs]))
        mean_h = float(np.mean(list(jct.values()))) / 3600
        off = abs(mean_h / published_h - 1)
        missed |= off > 1e-3 or same < 0.99
        print(f"{name:8} {mean_h:11.3f} {published_h:10.3f} {off:8.4%} {same:10.1%} {cpu_s:7.2f}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
