"""Twelve trainings on one machine, with Wattline and with first come, first served.

    python demo/run.py

Starts the service with simulated GPUs, submits an elastic job, a sweep of eight, a job with a deadline and
two runs of a recurring job, waits for them, and repeats it with FIFO. Screenshots of the service's page are
kept in out/demo if a browser is installed. The trainings are real PyTorch on CPUs;
the time of a step and the power are those of the library for the simulated GPUs.
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
from threading import Thread
from typing import Any

from screenshots import NAMES, find_browser, keep_screenshots

from wattline.cli.output import notify, print_table
from wattline.service.client import Client
from wattline.service.states import FINAL_STATES

HERE = Path(__file__).resolve().parent
PICTURES = HERE.parent / "out" / "demo"
GPUS = "simulated:4xv100"
DEADLINE_S = 50
SCHEDULERS = {
    "Wattline": ["--policy", "market:energy_price=1e-3,restart=6s,interval=5s", "--place", "tune"],
    "FIFO": ["--policy", "fifo", "--place", "pack"],
}
MODEL = {"model": "resnet50", "batch_size": 64}


def build_jobs() -> list[tuple[float, dict[str, Any]]]:
    """Return the job files, each with the second of its submission."""
    python, env = sys.executable, {"OMP_NUM_THREADS": "1"}
    train = [python, str(HERE / "train.py")]
    deadline = datetime.now(UTC) + timedelta(seconds=DEADLINE_S)
    common = {"env": env, "workdir": str(HERE), **MODEL}
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
        "name": f"urgent, due in {DEADLINE_S} s",
        "run": [*train, "--epochs", "3"],
        "deadline": deadline.isoformat(timespec="seconds"),
        "tardiness_weight": 1.0,
        "resources": {"gpus": 1, "time": "1m"},
    }
    return [(0, elastic), (0, nightly), (8, sweep), (8, urgent), (20, nightly)]


def run_jobs(options: list[str], folder: Path, pictures: Path | None) -> list[dict[str, Any]]:
    """Run all jobs on a service with *options* and return them when they have ended.

    *pictures* is the folder of the screenshots: the overview when all jobs are submitted, and the rest at the
    end. None: none are kept.
    """
    with ExitStack() as stack:
        command = [sys.executable, "-m", "wattline", "serve", "--dir", str(folder), "--port", "0"]
        service = subprocess.Popen(
            [*command, "--gpus", GPUS, *options],
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        stack.callback(stop, service)
        client = connect(folder, service)
        start_s, to_submit = time.monotonic(), build_jobs()
        printed: dict[str, str] = {}
        overview: Thread | None = None  # beside the loop, which submits jobs at their times
        while True:
            now_s = time.monotonic() - start_s
            while to_submit and now_s >= to_submit[0][0]:
                client.post("/jobs", to_submit.pop(0)[1])
            jobs = client.get("/jobs", {"limit": 100})["jobs"]
            for job in jobs:
                line = f"{job['name']:<24}  {job['state']:<10}{describe_gpus(job)}".rstrip()
                if printed.get(job["id"]) != line:
                    notify(f"{now_s:5.1f} s  {line}")
                    printed[job["id"]] = line
            if not to_submit and pictures is not None and overview is None:
                overview = Thread(target=take_pictures, args=(folder, {pictures / "overview.png": "/"}))
                overview.start()
            if not to_submit and all(job["state"] in FINAL_STATES for job in jobs):
                if pictures is not None and overview is not None:
                    overview.join()
                    sweep = next(job["sweep"] for job in jobs if job["sweep"])
                    paths = {"jobs": "/jobs", "sweep": f"/sweeps/{sweep}", "job": f"/jobs/{jobs[0]['id']}"}
                    take_pictures(folder, {pictures / f"{name}.png": path for name, path in paths.items()})
                return jobs
            time.sleep(0.5)


def connect(folder: Path, service: subprocess.Popen[bytes]) -> Client:
    """Wait until the service listens and return a client of it."""
    while not (folder / "url").exists():
        if service.poll() is not None:
            assert service.stderr is not None
            raise SystemExit(f"the service did not start: {service.stderr.read().decode()}")
        time.sleep(0.05)
    url = (folder / "url").read_text().strip()
    notify(f"page: {url}/ while this runs; log in with the token in {folder / 'token'}")
    return Client(url, (folder / "token").read_text().strip())


def take_pictures(folder: Path, pages: dict[Path, str]) -> None:
    """Keep screenshots of pages of the service; a browser that fails is no failure of the demo."""
    url, token = ((folder / name).read_text().strip() for name in ("url", "token"))
    try:
        keep_screenshots(url, token, pages)
        notify(f"screenshots: {', '.join(os.path.relpath(file) for file in pages)}")
    except OSError as error:
        notify(f"no screenshot was kept: {error}")


def stop(service: subprocess.Popen[bytes]) -> None:
    """Stop the service and wait for it."""
    service.terminate()
    service.communicate()


def describe_gpus(job: dict[str, Any]) -> str:
    """Return the GPUs of a running job, and the number of jobs that it is fused with."""
    allocation = job["allocation"]
    if job["state"] != "RUNNING" or not allocation["gpus"]:
        return ""
    fused = len(allocation["fused_with"])
    return f"GPU {','.join(map(str, allocation['gpus']))}" + (f", fused with {fused}" if fused else "")


def describe_decisions(job: dict[str, Any]) -> str:
    """Return what the scheduler changed for a job: fusion, GPUs, batch size and cap."""
    allocation, parts = job["allocation"], []
    if allocation["fused_with"]:
        parts.append(f"fused, {1 + len(allocation['fused_with'])} as one")
    if job["starts"] > 1:
        parts.append(f"resized {job['starts'] - 1}×")
    if job["name"] == "nightly" and allocation["batch"]:
        parts.append(f"batch {allocation['batch']}")
    if allocation["cap_w"]:
        parts.append(f"cap {allocation['cap_w']:g} W")
    return ", ".join(parts)


def print_comparison(results: dict[str, list[dict[str, Any]]], took_s: dict[str, float]) -> None:
    """Print the jobs of all schedulers side by side."""
    figures = [f"{name} {figure}" for name in results for figure in ("JCT", "wait", "energy")]
    rows = []
    for jobs in zip(*results.values(), strict=True):
        cells = [jobs[0]["name"]]
        for job in jobs:
            cells += [f"{jct_s(job):.0f} s", f"{wait_s(job):.0f} s", format_energy(job["energy_j"])]
        rows.append([*cells, describe_decisions(jobs[0])])
    totals = ["mean, total"]
    for all_jobs in results.values():
        energy_j = [job["energy_j"] for job in all_jobs]
        totals += [f"{sum(map(jct_s, all_jobs)) / len(all_jobs):.0f} s"]
        totals += [f"{sum(map(wait_s, all_jobs)) / len(all_jobs):.0f} s"]
        totals += [format_energy(None if None in energy_j else sum(energy_j))]
    rows.append([*totals, ", ".join(f"{name} took {took_s[name]:.0f} s" for name in results)])
    print_table(["job", *figures, "Wattline's decisions"], rows, right=figures)
    methods = sorted({job["energy_method"] for jobs in results.values() for job in jobs})
    print(f"Energy: {', '.join(methods)} GPU counters; the host is not metered.")


def jct_s(job: dict[str, Any]) -> float:
    """Return the seconds from submission to completion."""
    return float(job["end_s"] or 0) - float(job["submit_s"])


def wait_s(job: dict[str, Any]) -> float:
    """Return the seconds from submission to the first start."""
    return float(job["wait_s"] or 0)


def format_energy(energy_j: float | None) -> str:
    """Return an energy in kJ; `unmetered` for None."""
    return "unmetered" if energy_j is None else f"{energy_j / 1000:.2f} kJ"


def main() -> int:
    """Run the jobs with each scheduler and print the comparison."""
    parser = argparse.ArgumentParser(description="Run twelve trainings with Wattline and with FIFO.")
    parser.add_argument("--json", action="store_true", help="print the jobs of both runs as JSON on stdout")
    parser.add_argument(
        "--pictures", type=Path, default=PICTURES, help="folder of the screenshots (default: out/demo)"
    )
    args = parser.parse_args()
    if (browser := find_browser()) is None:
        notify(f"no screenshots of the page are kept: none of {', '.join(NAMES)} is installed")
    results, took_s = {}, {}
    with tempfile.TemporaryDirectory(prefix="wattline-demo-") as folder:
        for name, options in SCHEDULERS.items():
            notify(f"{name}: wattline serve --gpus {GPUS} {' '.join(options)}")
            start_s = time.monotonic()
            results[name] = run_jobs(
                options, Path(folder) / name, args.pictures / name.lower() if browser else None
            )
            took_s[name] = time.monotonic() - start_s
    if args.json:
        print(json.dumps(results))
    else:
        print_comparison(results, took_s)
    failed = [job for jobs in results.values() for job in jobs if job["state"] != "SUCCEEDED"]
    for job in failed:
        notify(f"{job['name']}: {job['state']}: {job['reason']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
