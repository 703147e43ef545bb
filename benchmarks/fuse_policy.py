"""Effect of fusing sweeps on a cluster: `POLICY+fuse` against `POLICY`, on synthetic sweeps.

    python benchmarks/fuse_policy.py [--seeds 5] [--count 400] [--policy fifo las] [--sweeps 0.5]

Ratios below 1 are better with fusing: geometric mean over the seeds, and the range. *serial* is the share of
a step that each further member adds (`wattline.models.array_speed`): 0.65 is assumed for unmeasured arrays,
0.2 is about the value of compiled arrays of small transformers on a CPU. A GPU is assumed to draw the same
with an array as with one job; on a GPU nothing was measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import wattline as wl
from wattline.models.array_speed import ArrayModel
from wattline.models.trace_model import TraceModels

FIGURES = {"mean JCT": "jct_mean_s", "makespan": "makespan_s", "energy": "energy_j"}
CLUSTER, GPUS = "4xv100:8", 32
LOST = 1.005


def simulate(jobs: wl.Jobs, policy: str, serial: float) -> wl.Report:
    truth = TraceModels(array=ArrayModel(serial))
    log = wl.run(wl.Sim(jobs, wl.parse_cluster(CLUSTER), truth=truth), wl.parse_policy(policy), truth)
    return wl.report(log)


def format_ratios(ratios: Sequence[float]) -> str:
    return f"{np.exp(np.mean(np.log(ratios))):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def print_comparison(
    seeds: int, count: int, sweeps: float, policies: Sequence[str], loads: Sequence[float]
) -> None:
    print(f"{count} jobs, {sweeps:.0%} in sweeps, on {CLUSTER}; {seeds} seeds")
    heads = [f"{name:>18}" for name in FIGURES]
    print(f"{'policy':6} {'load':>5} {'serial':>6}", *heads, f"{'fused':>7} {'width':>5}  where it loses")
    for load in loads:
        source = f"synth:count={count},sweeps={sweeps},gpus_total={GPUS},load={load}"
        jobs = [wl.read_trace(f"{source},seed={seed}") for seed in range(seeds)]
        for policy in policies:
            plain = [simulate(trace, policy, 1.0) for trace in jobs]
            for serial in (0.65, 0.2):
                fused = [simulate(trace, f"{policy}+fuse", serial) for trace in jobs]
                cells, lost = [], []
                for name, figure in FIGURES.items():
                    ratios = [
                        getattr(b, figure) / getattr(a, figure) for a, b in zip(plain, fused, strict=True)
                    ]
                    cells.append(f"{format_ratios(ratios):>18}")
                    lost += [f"{name} seed {seed} {r:.2f}" for seed, r in enumerate(ratios) if r > LOST]
                share = sum(r.fused_jobs for r in fused) / (count * seeds)
                width = np.nanmean([r.array_width_mean for r in fused])
                print(
                    f"{policy:6} {load:5.2f} {serial:6.2f}", *cells, f"{share:7.0%} {width:5.1f} ",
                    "; ".join(lost) or "nowhere", flush=True,
                )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--sweeps", type=float, default=0.5)
    parser.add_argument("--policy", nargs="+", default=["fifo", "las"])
    parser.add_argument("--load", nargs="+", type=float, default=[0.7, 1.0, 2.0])
    args = parser.parse_args()
    print_comparison(args.seeds, args.count, args.sweeps, args.policy, args.load)


if __name__ == "__main__":
    main()
