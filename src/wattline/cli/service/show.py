"""`wattline show JOB`: all that is known of a job."""

from __future__ import annotations

import argparse
import shlex
import time
from typing import Any

from wattline.cli.output import show_json
from wattline.cli.service.connect import path_of, reach
from wattline.cli.service.job_text import clean, clock, count, done, energy, lasts, why
from wattline.grid import grid
from wattline.units import show_seconds


def run(args: argparse.Namespace) -> int:
    """Show one job."""
    job = reach(args).get(path_of(args.job))
    if args.json:
        show_json(job)
    else:
        print("\n".join(grid(_rows(job, time.time()), lambda column: "<")))
    return 0


def _rows(job: dict[str, Any], now_s: float) -> list[tuple[str, str]]:
    started = job["starts"] > 0
    rows = [
        ("job", job["id"] + (f", of sweep {job['sweep']}" if job["sweep"] else "")),
        ("name", clean(job["name"])),
        ("state", job["state"] + (" (held)" if job["held"] else "")),
        ("why", why(job)),
        ("command", clean(shlex.join(job["command"]))),
        ("user", clean(job["user"]) or "the service's own"),
        ("team", clean(job["team"])),
        ("priority", f"{job['priority']:g}"),
        ("asks for", count(job["gpus_asked"], "GPU")),
        ("runs on" if job["state"] == "RUNNING" else "ran on", _given(job["given"]) if started else ""),
        ("submitted", clock(job["submit_s"])),
        ("waited", "" if job["wait_s"] is None else show_seconds(round(job["wait_s"], 1))),
        ("started", clock(job["start_s"]) + _times(job) if started else ""),
        ("ended", clock(job["end_s"]) if job["end_s"] is not None else ""),
        ("time", lasts(job, now_s)),
        ("progress", done(job)),
        ("energy", energy(job)),
        ("exit code", "" if job["exit_code"] is None else str(job["exit_code"])),
        ("metrics", ", ".join(f"{clean(name)} {value:.6g}" for name, value in job["metrics"].items())),
    ]
    return [(name, value) for name, value in rows if value]


def _given(given: dict[str, Any]) -> str:
    numbers = ", ".join(map(str, given["gpus"]))
    words = [f"GPU{'s' if len(given['gpus']) != 1 else ''} {numbers}", given["kind"]]
    words += [f"cap {given['cap_w']:g} W"] if given["cap_w"] else []
    words += [f"batch {given['batch']}"] if given["batch"] else []
    words += [count(given["cpus"], "core")] if given["cpus"] else []
    words += [f"as one array with jobs {', '.join(given['fused_with'])}"] if given["fused_with"] else []
    return ", ".join(filter(None, words))


def _times(job: dict[str, Any]) -> str:
    if job["starts"] < 2:
        return ""
    killed = f", after {count(job['kills'], 'kill')}" if job["kills"] else ""
    return f", attempt {job['starts']}{killed}"
