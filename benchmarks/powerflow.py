"""Early finish at equal energy: PowerFlow against every baseline on six virtual clusters of two traces.

python benchmarks/powerflow.py [--loads 0.7,1.5] [--seeds 5] [--count 400] [--jobs 2] [--html front.html]

A seed is a stretch of *count* jobs of the virtual cluster, and the models of jobs that name none. The cluster
has as many nodes of 8 A100s as give the requested load, but enough for the largest job. PowerFlow is
placed by `buddy+power`, the baselines by `pack` (as published: no node is switched off), and by
`buddy+power` too in the rows marked @power. Energy is all that the cluster draws: jobs, idle GPUs, nodes,
boots.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.table import Floats
from wattline.papers.powerflow_experiment import BASELINES, CELLS, draw_stretch, measure_cell, read_jobs

TRACES = {"philly": "philly/philly_jobs.csv.gz", "itp": "itp/elasticflow-traces.tar.gz"}
KNOWING = ("srtf", "afs:lengths=known", "tiresias@power")
"""Further baselines: two that know the lengths of jobs, and one that switches nodes off."""


def build_case(name: str, team: str, seed: int, load: float, count: int) -> tuple[Jobs, Nodes, float]:
    """Return the jobs of a cell, its nodes, and the offered load."""
    path = Path(os.environ.get("WATTLINE_DATA", "../shared/data")) / TRACES[name]
    return draw_stretch(read_jobs(str(path)), team, seed, load, count)


def measure(job: tuple[str, str, int, float, int, tuple[str, ...]]) -> dict[str, object]:
    """Return the results of all runs of one cell and seed."""
    name, team, seed, load, count, baselines = job
    jobs, nodes, offered = build_case(name, team, seed, load, count)
    rows, front = measure_cell(jobs, nodes, baselines)
    about = {"cell": (name, team), "seed": seed, "load": offered, "nodes": len(nodes)}
    return {**about, "rows": rows, "front": front}


def print_results(results: Sequence[dict], baselines: Sequence[str]) -> None:  # type: ignore[type-arg]
    for cell in dict.fromkeys(r["cell"] for r in results):
        mine = [r for r in results if r["cell"] == cell]
        loads = [r["load"] for r in mine]
        nodes = sorted({r["nodes"] for r in mine})
        text = f"offered load {min(loads):.2f}-{max(loads):.2f}, {nodes[0]}-{nodes[-1]} nodes"
        print(f"\n{cell[0]} {cell[1]}: {text}")
        print("  baseline               JCT h     MWh | at equal energy x better       energy | at equal JCT")
        for text in baselines:
            rows = [r["rows"][text] for r in mine]
            better = np.array([row["better"] for row in rows])
            energy = np.array([row["energy"] for row in rows])
            jct_h, mwh = (np.mean([row[key] for row in rows]) for key in ("jct_h", "kwh"))
            saves = 100 * np.array([row["saves"] for row in rows if "saves" in row])
            saving = (
                f" | saves {saves.mean():.1f} % ({saves.min():.1f}-{saves.max():.1f})" if len(saves) else ""
            )
            print(
                f"  {text:20} {jct_h:7.2f} {mwh / 1000:7.2f} | {better.mean():5.2f} ± {_spread(better):4.2f} "
                f"({better.min():.2f}-{better.max():.2f})  {energy.min():.2f}-{energy.max():.2f}{saving}"
            )


def _spread(values: Floats) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loads", default="0.7,1.5")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cells", default="")
    parser.add_argument("--html", default="")
    args = parser.parse_args()
    cells = [cell for cell in CELLS if not args.cells or f"{cell[0]}:{cell[1]}" in args.cells.split(",")]
    baselines = (*BASELINES, *KNOWING)
    good = True
    for load in map(float, args.loads.split(",")):
        print(f"\n== requested load {load}, {args.seeds} seeds of {args.count} jobs")
        work = [(*cell, seed, load, args.count, baselines) for cell in cells for seed in range(args.seeds)]
        with ProcessPoolExecutor(args.jobs) as pool:
            results = list(pool.map(measure, work))
        print_results(results, baselines)
        good = check_bars(results) and good
        if args.html:
            write_front(results, Path(args.html).with_stem(f"{Path(args.html).stem}-{load:g}"))
    return 0 if good else 1


def check_bars(results: Sequence[dict]) -> bool:  # type: ignore[type-arg]
    """Return whether, on some trace, the mean gain is 1.57 over every baseline and 3.39 over the weakest."""
    won = False
    for cell in dict.fromkeys(r["cell"] for r in results):
        mine = [r["rows"] for r in results if r["cell"] == cell]
        means = {text: float(np.mean([rows[text]["better"] for rows in mine])) for text in BASELINES}
        least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        good = means[least] >= 1.57 and means[most] >= 3.39
        won = won or good
        text = f"least {means[least]:.2f} against {least}, most {means[most]:.2f} against {most}"
        print(f"{cell[0]} {cell[1]}: {text}{', both bars met' if good else ''}")
    saves = [100 * r["rows"]["tiresias"]["saves"] for r in results]
    print(
        f"at Tiresias' mean JCT: {np.mean(saves):.1f} % less energy over all cells, least {min(saves):.1f} %"
    )
    return won and float(np.mean(saves)) >= 25.0


def write_front(results: Sequence[dict], path: Path) -> None:  # type: ignore[type-arg]
    """Draw one plot per cell: the energy-JCT front of PowerFlow and the baselines, of seed 0."""
    from plotly.subplots import make_subplots

    cells = [r for r in results if r["seed"] == 0]
    figure = make_subplots(
        rows=2, cols=3, subplot_titles=[f"{r['cell'][0]} {r['cell'][1]}, load {r['load']:.2f}" for r in cells]
    )
    for at, r in enumerate(cells):
        row, col = 1 + at // 3, 1 + at % 3
        etas, kwh, jct_h = zip(*r["front"], strict=True)
        figure.add_scatter(
            x=[v / 1000 for v in kwh], y=jct_h, text=[f"eta {eta:g}" for eta in etas], mode="lines+markers",
            name="powerflow", line={"color": "#4477AA"}, showlegend=at == 0, row=row, col=col,
        )  # fmt: skip
        for place, text in enumerate(BASELINES):
            seen = r["rows"][text]
            figure.add_scatter(
                x=[seen["kwh"] / 1000], y=[seen["jct_h"]], mode="markers", name=text, showlegend=at == 0,
                marker={"symbol": place % 5, "color": "#EE6677" if place < 5 else "#228833", "size": 9},
                row=row, col=col,
            )  # fmt: skip
        figure.update_xaxes(title_text="energy (MWh)", row=row, col=col)
        figure.update_yaxes(title_text="mean JCT (h)", type="log", row=row, col=col)
    figure.update_layout(
        height=820, template="simple_white", title="Energy and mean JCT: PowerFlow from eta 0 to 1"
    )
    figure.write_html(path, include_plotlyjs=True)
    print(f"front: {path}")


if __name__ == "__main__":
    sys.exit(main())
