"""Speed of an array against its members one after another, on the CPU.

    python benchmarks/fusion.py                  all models at width 8
    python benchmarks/fusion.py --curve          widths 1 to 32, as a table and out/fusion_widths.html

Steps are forward, backward and update (Adam, or the case's optimiser); every member has its own batches.
All runs are interleaved in one process, and the median is of at least 7. Ratios are of samples per second,
summed over members. The baselines: a plain loop over the members with the default optimiser, and the same
compiled (the faster of torch.compile of the whole step, and of forward and update separately).
Compiled steps are one member's, called for each,
which leaves its weights in the cache and so favours them. "Ours, not fused" is our own compiled step, one
member after another: the fallback of "auto", and the strictest baseline.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch

from wattline.fusion.step.execution_mode import ExecutionMode
from wattline.papers.hfta.models import CASES
from wattline.papers.hfta.steps import (
    Run,
    build_array_step,
    build_compiled_parts_run,
    build_compiled_run,
    build_serial_run,
    build_vmap_run,
    time_interleaved,
)

BARS = {
    "tiny MLP": (12, 4),
    "MLP": (2.8, 1.4),
    "CNN": (1.6, 1.15),
    "PointNet": (1.8, 1.3),
    "transformer": (3.3, 1.6),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--curve", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    names = args.models.split(",")
    if args.curve:
        measure_curve(names, args.rounds)
        return
    for seed in range(args.seeds):
        for name in names:
            compare(name, args.width, args.rounds, seed)


def compare(name: str, width: int, rounds: int, seed: int) -> None:
    case = CASES[name]
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    models = [case.build() for _ in range(width)]
    xs, ys = (torch.stack(column) for column in zip(*(case.batch(generator) for _ in models), strict=True))
    runs: dict[str, Run] = {
        "serial": build_serial_run(models, case, xs, ys),
        "compiled whole": build_compiled_run(case, xs, ys),
        "compiled parts": build_compiled_parts_run(case, xs, ys),
        "vmap": build_vmap_run(models, case, xs, ys),
    }
    steps = {}
    for label, wide in (("ours, not fused", 1), ("fused", None), ("fused, auto", "auto")):
        steps[label] = step = build_array_step(models, case, wide)
        if wide == 1:
            step.way = ExecutionMode(1, None, compiled=True)
        runs[label] = lambda step=step: step(xs, ys, members=True)
    times = time_interleaved(runs, rounds)
    base, compiled = times["serial"], min(times["compiled whole"], times["compiled parts"])
    print(f"\n{name}, width {width}, seed {seed}: {1e3 * base / width:.3f} ms a step of one member, serially")
    for label, step_s in times.items():
        extra = ""
        if label in steps:
            extra = f"  compiling {steps[label].compile_s:.0f} s  {steps[label].way}"
        print(f"  {label:18s}{base / step_s:7.2f} x serial {compiled / step_s:7.2f} x compiled{extra}")
    best = min(base, compiled, times["ours, not fused"])
    ours = times["fused, auto"]
    if name in BARS:
        least, ahead = BARS[name]
        met = base / ours >= least and compiled / ours >= ahead
        print(
            f"  bars {least} and {ahead}: {'met' if met else 'MISSED'}; {best / ours:.2f} x the best serial"
        )
    for t in steps["fused, auto"].tried:
        print(f"    tried {1e3 * t.step_s:9.3f} ms  compiled in {t.compile_s:4.0f} s  {t.way}")


def measure_curve(names: list[str], rounds: int) -> None:
    """Measure samples per second against the serial loop, by width."""
    widths = [1, 2, 4, 8, 16, 32]
    found: dict[str, list[float]] = {}
    for name in names:
        case = CASES[name]
        found[name] = []
        for width in widths:
            generator = torch.Generator().manual_seed(0)
            models = [case.build() for _ in range(width)]
            xs, ys = (torch.stack(c) for c in zip(*(case.batch(generator) for _ in models), strict=True))
            step = build_array_step(models, case, None)
            runs: dict[str, Run] = {
                "serial": build_serial_run(models, case, xs, ys),
                "fused": lambda step=step, xs=xs, ys=ys: step(xs, ys, members=True),
            }
            times = time_interleaved(runs, rounds)
            found[name].append(times["serial"] / times["fused"])
            print(f"{name:14s} width {width:3d}  {found[name][-1]:6.2f} x serial", flush=True)
    write_curve_page(widths, found)


def write_curve_page(widths: list[int], found: dict[str, list[float]]) -> None:
    import plotly.graph_objects as go

    figure = go.Figure()
    for name, gains in found.items():
        figure.add_scatter(x=widths, y=gains, name=name, mode="lines+markers")
    figure.add_hline(y=1, line_dash="dot")
    figure.update_xaxes(type="log", tickvals=widths, title="members of the array")
    figure.update_yaxes(type="log", title="samples per second, against one member after another")
    out = Path("out/fusion_widths.html")
    out.parent.mkdir(exist_ok=True)
    figure.write_html(out, include_plotlyjs=True)
    print(f"written: {out}")


if __name__ == "__main__":
    main()
