"""Speed of arrays against serial loops, vmap and HFTA's hand-fused models, by case, width and threads.

    python benchmarks/fusion_speed.py                                    everything (hours)
    python benchmarks/fusion_speed.py --no-compile                       only what runs without a compiler
    python benchmarks/fusion_speed.py --cases "tiny MLP,CNN" --widths 2 8 --threads 2 --shared --auto

A step is forward, backward and update of all members. Every member has its own batch; with --shared all have
one batch. The ways:

    serial           plain loop over the models, `torch.optim` with default settings
    compiled whole   the same, one member's step under torch.compile, called for each member
    compiled parts   the same, forward with backward and update compiled separately
    vmap             ensembles as in the documentation of torch.func
    HFTA             hand-fused operators and optimiser, eager (wattline.papers.hfta)
    uncompiled       `fusion.train_step(compile=False)`
    loop             a loop of the user's own: `array`, `array.loss`, `backward`, `step`
    compiled         `fusion.train_step`, all members at once
    auto             `fusion.train_step(width="auto")`, with --auto

"serial compiled" is the faster of "compiled whole" and "compiled parts" by the medians.

Before anything is timed, the hand-fused models are checked against separate ones. Each cell (case, width,
threads) is a process of its own with a time limit; if it is exceeded, the rounds measured so far count. In a
round each way runs one block of steps of at least --block-s seconds, in random order. Printed are the median
milliseconds of a step and the ratio to serial. The ratios to HFTA and to serial compiled are medians over
rounds, each of two blocks of one round, with a 95 % interval by bootstrap over rounds. "loses" marks a ratio
of ours with an interval that begins below 1. Compared with HFTA are uncompiled, loop, compiled and auto; with
serial compiled the two that compile. out/fusion_speed.json has all times; --resume continues it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hfta_operators import check_hand_fused
from torch import Tensor, nn

from wattline import fusion
from wattline.papers.hfta.hand_models import HAND_FUSED, build_hand_fused_run
from wattline.papers.hfta.models import CASES, FusionCase
from wattline.papers.hfta.steps import (
    Run,
    build_compiled_parts_run,
    build_compiled_run,
    build_serial_run,
    build_vmap_run,
)

Cell = dict[str, Any]
WAYS = (
    "serial",
    "compiled whole",
    "compiled parts",
    "vmap",
    "HFTA",
    "uncompiled",
    "loop",
    "compiled",
    "auto",
)
COMPILING = ("compiled whole", "compiled parts", "compiled", "auto")
COMPARED = (  # ours, with what
    ("uncompiled", "HFTA"),
    ("loop", "HFTA"),
    ("compiled", "HFTA"),
    ("compiled", "serial compiled"),
    ("auto", "HFTA"),
    ("auto", "serial compiled"),
)
KEY = ("case", "width", "threads", "shared", "ways")
WARM_STEPS, WARM_S = 6, 0.3  # of each way before the first round, at least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--widths", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--block-s", type=float, default=0.1, help="least seconds of a block of steps")
    parser.add_argument("--limit-s", type=float, default=1200, help="time limit of a cell")
    parser.add_argument("--shared", action="store_true", help="one batch for all members")
    parser.add_argument("--auto", action="store_true", help='also measure width="auto"')
    parser.add_argument("--no-compile", action="store_true", help="leave out all ways that compile")
    parser.add_argument(
        "--keep-freed-memory", action="store_true", help="call fusion.keep_freed_memory() first, for all ways"
    )
    parser.add_argument("--out", type=Path, default=Path("out/fusion_speed.json"))
    parser.add_argument("--resume", action="store_true", help="keep the finished cells of --out")
    parser.add_argument("--cell", help=argparse.SUPPRESS)  # settings of one cell, for the subprocess
    args = parser.parse_args()
    if args.cell:
        measure_cell(json.loads(args.cell))
        return
    names = args.cases.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"unknown cases {unknown}; expected some of {list(CASES)}")
    ways = [
        way for way in WAYS if (args.auto or way != "auto") and not (args.no_compile and way in COMPILING)
    ]
    cells = load_cells(args.out) if args.resume else []
    done = [tuple(cell[part] for part in KEY) for cell in cells]
    for name in names:
        check_hand_fused(name, shared=args.shared)
        print(f"check: hand-fused {name} agrees with separate models", flush=True)
    for name in names:
        for threads in args.threads:
            for width in args.widths:
                key = (name, width, threads, args.shared, ways)
                if key in done:
                    continue
                cell = run_cell(
                    name,
                    width,
                    threads,
                    ways,
                    rounds=args.rounds,
                    block_s=args.block_s,
                    limit_s=args.limit_s,
                    shared=args.shared,
                    keep_memory=args.keep_freed_memory,
                )
                cells.append(cell)
                print_cell(cell)
                save_cells(args.out, cells)
    print_losses(cells)
    print(f"written: {args.out}")


def run_cell(
    name: str,
    width: int,
    threads: int,
    ways: Sequence[str],
    *,
    rounds: int = 9,
    block_s: float = 0.1,
    limit_s: float = 1200,
    shared: bool = False,
    keep_memory: bool = False,
) -> Cell:
    """Measure a cell in a process of its own and return its times, medians and ratios."""
    cell: Cell = {"case": name, "width": width, "threads": threads, "shared": shared}
    cell |= {"ways": list(ways), "rounds": 0, "times_s": {}, "failed": {}, "notes": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cell.json"
        settings = {
            **{part: cell[part] for part in KEY},
            "rounds": rounds,
            "block_s": block_s,
            "keep_memory": keep_memory,
            "path": str(path),
        }
        process = subprocess.Popen(
            [sys.executable, __file__, "--cell", json.dumps(settings)],
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
            start_new_session=True,  # so that the workers of a compiler end with it
        )
        start_s = time.perf_counter()
        try:
            code = process.wait(limit_s)
            ending = "" if code == 0 else f"process ended with code {code}"
        except subprocess.TimeoutExpired:
            ending = f"time limit of {limit_s:.0f} s exceeded"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if path.exists():
            cell |= json.loads(path.read_text())
        if ending:
            cell["failed"]["cell"] = ending
        cell["cell_s"] = round(time.perf_counter() - start_s, 1)
    return summarise(cell)


def measure_cell(settings: dict[str, Any]) -> None:
    """Build all ways of a cell, time them in turn, and write the times after each round."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    if settings["keep_memory"]:
        fusion.keep_freed_memory()
    name, width, shared = settings["case"], settings["width"], settings["shared"]
    head = f"{name}, width {width}, threads {settings['threads']}"
    cell: Cell = {"rounds": 0, "times_s": {}, "failed": {}, "notes": {}}
    runs: dict[str, Run] = {}
    counts: dict[str, int] = {}
    for way in settings["ways"]:
        start_s = time.perf_counter()
        try:
            runs[way], describe = build_run(way, name, width, shared)
            counts[way] = warm_up(runs[way], settings["block_s"])
            cell["notes"][way] = describe()
        except Exception as error:
            runs.pop(way, None)
            reason = str(error).strip().split("\n")[0][:200]
            cell["failed"][way] = f"{type(error).__name__}: {reason}"
            print(f"  {head}: {way} failed: {cell['failed'][way]}", flush=True)
            continue
        print(f"  {head}: {way} ready in {time.perf_counter() - start_s:.1f} s", flush=True)
    times: dict[str, list[float]] = {way: [] for way in runs}
    order, shuffle = list(runs), random.Random(0).shuffle
    for _ in range(settings["rounds"] if runs else 0):
        shuffle(order)
        measured = {way: time_block(runs[way], counts[way]) for way in order}
        for way, step_s in measured.items():
            times[way].append(step_s)
        cell |= {"rounds": cell["rounds"] + 1, "times_s": times}
        part = Path(settings["path"] + ".part")
        part.write_text(json.dumps(cell))
        part.replace(settings["path"])


def build_run(way: str, name: str, width: int, shared: bool) -> tuple[Run, Callable[[], str]]:
    """Return a step of all members in one way, and a function that describes it after the warm-up."""
    case = CASES[name]
    generator = torch.Generator().manual_seed(0)
    models = [case.build() for _ in range(width)]
    if shared:
        x, y = case.batch(generator)
        xs, ys = x.expand(width, *x.shape), y.expand(width, *y.shape)
    else:
        batches = [case.batch(generator) for _ in models]
        xs, ys = (torch.stack(column) for column in zip(*batches, strict=True))
        x, y = xs, ys
    if way == "serial":
        return build_serial_run(models, case, xs, ys), str
    if way == "compiled whole":
        return build_compiled_run(case, xs, ys), str
    if way == "compiled parts":
        return build_compiled_parts_run(case, xs, ys), str
    if way == "vmap":
        return build_vmap_run(models, case, x, y, shared=shared), str
    if way == "HFTA":
        return build_hand_fused_run(name, models, x, y, shared=shared), str
    if way == "loop":
        return build_loop_run(models, case, x, y, shared), str
    array = fusion.fuse(models)
    step = fusion.train_step(
        array,
        case.loss,
        getattr(fusion, case.optimiser)(array),
        width="auto" if way == "auto" else None,
        compile=way != "uncompiled",
    )
    return (
        lambda: step(x, y, members=not shared),
        lambda: f"{step.way}" + (f", compiled in {step.compile_s:.0f} s" if step.compile_s >= 1 else ""),
    )


def build_loop_run(models: list[nn.Module], case: FusionCase, x: Tensor, y: Tensor, shared: bool) -> Run:
    """Return a step as a user writes it by hand on an array."""
    array = fusion.fuse(models)
    optimiser = getattr(fusion, case.optimiser)(array)

    def run() -> None:
        optimiser.zero_grad()
        output = array(x, members=not shared)
        array.loss(case.loss, output, y, members=not shared).sum().backward()
        optimiser.step()

    return run


def warm_up(run: Run, block_s: float) -> int:
    """Run a few steps and return the number of steps of a block."""
    start_s, step_s, count = time.perf_counter(), float("inf"), 0
    while count < WARM_STEPS or time.perf_counter() - start_s < WARM_S:
        step_s = min(step_s, time_block(run, 1))
        count += 1
    return max(1, -int(-block_s // step_s))


def time_block(run: Run, count: int) -> float:
    """Return the mean seconds of a step over *count* steps."""
    start_s = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start_s) / count


def summarise(cell: Cell) -> Cell:
    """Add medians, the faster compiled serial loop, and ratios with intervals to a cell."""
    times: dict[str, list[float]] = dict(cell["times_s"])
    compiled = [way for way in ("compiled whole", "compiled parts") if times.get(way)]
    if compiled:
        best = min(compiled, key=lambda way: statistics.median(times[way]))
        times["serial compiled"] = times[best]
        cell["notes"]["serial compiled"] = f"is {best}"
    cell["median_ms"] = {way: 1e3 * statistics.median(seen) for way, seen in times.items() if seen}
    cell["ratios"] = []
    for ours, other in COMPARED:
        if times.get(ours) and times.get(other):
            ratio, low, high = estimate_ratio(times[other], times[ours])
            found = {"ours": ours, "other": other, "ratio": ratio, "low": low, "high": high}
            cell["ratios"].append(found | {"loses": low < 1})
    return cell


def estimate_ratio(other: list[float], ours: list[float]) -> tuple[float, float, float]:
    """Return the median of other / ours over paired rounds, and its 95 % interval by bootstrap."""
    ratios = np.array(other) / np.array(ours)
    drawn = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(ratios)), float(low), float(high)


def print_cell(cell: Cell) -> None:
    print(f"\n{describe_cell(cell)}, {cell['rounds']} rounds in {cell['cell_s']:.0f} s")
    base = cell["median_ms"].get("serial")
    for way in (*WAYS[:3], "serial compiled", *WAYS[3:]):
        if way not in cell["median_ms"]:
            continue
        middle = cell["median_ms"][way]
        text = f"  {way:16s}{middle:10.3f} ms"
        if base:
            text += f"{base / middle:8.2f} x serial"
        text += "".join(f"   {describe_ratio(r)}" for r in cell["ratios"] if r["ours"] == way)
        if cell["notes"].get(way):
            text += f"   ({cell['notes'][way]})"
        print(text)
    for way, reason in cell["failed"].items():
        print(f"  {way:16s}failed: {reason}")
    print(flush=True)


def describe_cell(cell: Cell) -> str:
    kind = "one batch for all" if cell["shared"] else "own batches"
    return f"{cell['case']}, width {cell['width']}, threads {cell['threads']}, {kind}"


def describe_ratio(found: dict[str, Any]) -> str:
    mark = " loses" if found["loses"] else ""
    return f"{found['ratio']:.2f} x {found['other']} [{found['low']:.2f}, {found['high']:.2f}]{mark}"


def print_losses(cells: list[Cell]) -> None:
    compared = sum(len(cell["ratios"]) for cell in cells)
    losing = [(cell, found) for cell in cells for found in cell["ratios"] if found["loses"]]
    print(f"{len(losing)} of {compared} ratios lose (the interval begins below 1):")
    for cell, found in losing:
        print(f"  {describe_cell(cell)}: {found['ours']} {describe_ratio(found)}")
    for cell in cells:
        for way, reason in cell["failed"].items():
            print(f"  not measured: {describe_cell(cell)}: {way}: {reason}")


def save_cells(path: Path, cells: list[Cell]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {"torch": torch.__version__, "cpu": platform.processor(), "cores": os.cpu_count()}
    path.write_text(json.dumps({"machine": machine, "cells": cells}, indent=1))


def load_cells(path: Path) -> list[Cell]:
    cells = json.loads(path.read_text())["cells"] if path.exists() else []
    return [cell for cell in cells if cell["rounds"]]


if __name__ == "__main__":
    assert set(HAND_FUSED) == set(CASES)
    main()
