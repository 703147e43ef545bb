"""Twelve trainings on one machine: under Wattline, and under plain first come, first served.

    python demo/run.py

Starts the service with simulated GPUs, submits an elastic job, a sweep of eight, one with a deadline and two
runs of a recurring one, waits for them, and does it all again under FIFO. The trainings are real PyTorch on
CPUs; how long a step takes and what it draws is what the library says of the simulated GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from wattline.service.client import Client
from wattline.service.states import OVER

HERE = Path(__file__).resolve().parent
GPUS = "simulated:4xv100"
DUE_S = 50
WAYS = {
    "Wattline": ["--policy", "pollux:interval=5,restart=6+fuse+cap:slowdown=1.1,known=1", "--place", "tune"],
    "FIFO": ["--policy", "fifo", "--place", "pack"],
}
_MODEL = {"model": "resnet50", "batch_size": 64}


def workload() -> list[tuple[float, dict[str, Any]]]:
    """The jobs, with the second after which each is submitted."""
    python, env = sys.executable, {"OMP_NUM_THREADS": "1"}
    train = [python, str(HERE / "train.py")]
    deadline = datetime.now(UTC) + timedelta(seconds=DUE_S)
    common = {"env": env, "workdir": str(HERE), **_MODEL}
    nightly = {
        **common,
        "name": "nightly",
        "run": [*train, "--epochs", "3"],
        "recurring": {"group": "nightly", "batch_sizes": [32, 64, 128]},
        "resources": {"gpus": 1, "time": "2m"},
    }
    elastic = {
        **common,
        "name": "elastic",
        "run": [*train, "--epochs", "12"],
        "elastic": True,
        "resources": {"gpus": "1..2", "time": "3m"},
    }
    sweep = {
        **common,
        "name": "sweep lr=${lr} seed=${seed}",
        "run": [python, str(HERE / "sweep.py"), "lr=${lr}", "seed=${seed}"],
        "matrix": {"lr": [1e-3, 3e-3, 1e-2, 3e-2], "seed": [0, 1]},
        "fuse": 8,
        "resources": {"gpus": 1, "time": "2m"},
    }
    urgent = {
        **common,
        "name": f"urgent, due in {DUE_S} s",
        "run": [*train, "--epochs", "3"],
        "deadline": deadline.isoformat(timespec="seconds"),
        "tardiness_weight": 1.0,
        "resources": {"gpus": 1, "time": "1m"},
    }
    return [(0, elastic), (0, nightly), (8, sweep), (8, urgent), (20, nightly)]


def one_run(name: str, options: list[str], folder: Path, console: Console) -> list[dict[str, Any]]:
    """All jobs under one policy; answers how they ended."""
    with ExitStack() as stack:
        served = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "wattline",
                "serve",
                "--dir",
                str(folder),
                "--gpus",
                GPUS,
                "--port",
                "0",
                *options,
            ],
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        stack.callback(_end, served)
        client = _client(folder, served)
        began_s, left = time.monotonic(), workload()
        bars = Progress(
            TextColumn("{task.description:<24}"), BarColumn(30), TextColumn("{task.fields[state]:<10}"),
            TextColumn("{task.fields[on]}"), TimeElapsedColumn(), console=console,
        )  # fmt: skip
        rows = {}
        stack.enter_context(bars)
        while True:
            while left and time.monotonic() - began_s >= left[0][0]:
                client.post("/jobs", left.pop(0)[1])
            found = client.get("/jobs", {"limit": 100})["jobs"]
            for job in found:
                if job["id"] not in rows:
                    rows[job["id"]] = bars.add_task(job["name"], total=1.0, state="", on="")
                done = 1.0 if job["state"] == "SUCCEEDED" else job["progress"] or 0.0
                bars.update(rows[job["id"]], completed=done, state=job["state"].lower(), on=_on(job))
                if job["state"] in OVER:
                    bars.stop_task(rows[job["id"]])
            if not left and all(job["state"] in OVER for job in found):
                return found
            time.sleep(0.5)


def _client(folder: Path, served: subprocess.Popen[bytes]) -> Client:
    """Once the service answers."""
    while not (folder / "url").exists():
        if served.poll() is not None:
            assert served.stderr is not None
            raise SystemExit(f"the service did not start: {served.stderr.read().decode()}")
        time.sleep(0.05)
    return Client((folder / "url").read_text().strip(), (folder / "token").read_text().strip())


def _end(served: subprocess.Popen[bytes]) -> None:
    served.terminate()
    served.communicate()


def _on(job: dict[str, Any]) -> str:
    given = job["given"]
    if not given["gpus"]:
        return ""
    text = f"GPU {','.join(map(str, given['gpus']))}"
    return text + (f", one of {1 + len(given['fused_with'])} fused" if given["fused_with"] else "")


def _notes(job: dict[str, Any]) -> str:
    given, said = job["given"], []
    if given["fused_with"]:
        said.append(f"fused, {1 + len(given['fused_with'])} as one")
    if job["starts"] > 1:
        said.append(f"resized {job['starts'] - 1}×")
    if job["name"] == "nightly" and given["batch"]:
        said.append(f"batch {given['batch']}")
    if given["cap_w"]:
        said.append(f"cap {given['cap_w']:g} W")
    return ", ".join(said)


def show(ended: dict[str, list[dict[str, Any]]], took_s: dict[str, float], console: Console) -> None:
    """Both runs side by side."""
    table = Table(title="The same twelve trainings")
    table.add_column("job")
    for name in ended:
        for column in (f"{name}: JCT", "wait", "energy"):
            table.add_column(column, justify="right")
    table.add_column("what Wattline did")
    for row in zip(*ended.values(), strict=True):
        cells = [row[0]["name"]]
        for job in row:
            jct_s = (job["end_s"] or 0) - job["submit_s"]
            cells += [f"{jct_s:.0f} s", f"{job['wait_s'] or 0:.0f} s", _energy(job["energy_j"])]
        table.add_row(*cells, _notes(row[0]))
    cells = ["mean, total"]
    for jobs in ended.values():
        mean = [sum(f(job) for job in jobs) / len(jobs) for f in (_jct_s, lambda job: job["wait_s"] or 0)]
        total = [job["energy_j"] for job in jobs]
        cells += [f"{mean[0]:.0f} s", f"{mean[1]:.0f} s", _energy(None if None in total else sum(total))]
    table.add_section()
    table.add_row(*cells, ", ".join(f"{name} took {took_s[name]:.0f} s" for name in ended))
    console.print(table)
    methods = sorted({job["energy_method"] for jobs in ended.values() for job in jobs})
    console.print(f"Energy: {', '.join(methods)} GPU counters; the host is not metered.")


def _jct_s(job: dict[str, Any]) -> float:
    return float(job["end_s"] or 0) - float(job["submit_s"])


def _energy(joules: float | None) -> str:
    return "unmetered" if joules is None else f"{joules / 1000:.2f} kJ"


def main() -> int:
    """Run both, show both."""
    parser = argparse.ArgumentParser(description="Twelve trainings, under Wattline and under FIFO.")
    parser.add_argument("--json", action="store_true", help="the jobs of both runs on stdout")
    args = parser.parse_args()
    console = Console(stderr=args.json, width=None if sys.stdout.isatty() else 120)
    ended, took_s = {}, {}
    with tempfile.TemporaryDirectory(prefix="wattline-demo-") as folder:
        for name, options in WAYS.items():
            console.print(f"[bold]{name}[/bold]: wattline serve --gpus {GPUS} {' '.join(options)}")
            began_s = time.monotonic()
            ended[name] = one_run(name, options, Path(folder) / name, console)
            took_s[name] = time.monotonic() - began_s
    show(ended, took_s, console)
    if args.json:
        print(json.dumps(ended))
    failed = [job for jobs in ended.values() for job in jobs if job["state"] != "SUCCEEDED"]
    for job in failed:
        console.print(f"{job['name']}: {job['state']}: {job['reason']}", style="red")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
