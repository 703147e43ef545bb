"""`wattline show JOB`: show all details of a job."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from wattline.cli.output import print_json, print_table
from wattline.cli.service.connect import add_connection_arguments, add_job_id_argument, connect, job_path
from wattline.cli.service.job_text import (
    format_clock,
    format_duration,
    format_energy,
    format_gpus,
    format_progress,
    format_reason,
    format_time,
    pluralize,
    sanitize,
)
from wattline.units import format_joules, format_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline show`."""
    add_job_id_argument(parser)
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the details of one job."""
    job = connect(args).get(job_path(args.job))
    if args.json:
        print_json(job)
    else:
        print_table((), _build_rows(job))
        if job.get("log_tail"):
            print(f"last lines of its log (wattline logs {job['id']}):")
            for line in job["log_tail"]:
                print(f"  {sanitize(line)}")
    return 0


def _build_rows(job: dict[str, Any]) -> list[tuple[str, str]]:
    started = job["starts"] > 0
    rows = [
        ("job", job["id"] + (f", of sweep {job['sweep']}" if job["sweep"] else "")),
        ("name", sanitize(job["name"])),
        ("state", job["state"] + (" (held)" if job["held"] else "")),
        ("why", format_reason(job)),
        ("matrix", sanitize(", ".join(f"{name}={value}" for name, value in job["matrix"].items()))),
        ("depends on", ", ".join(map(_format_dependency, job["depends_on"]))),
        ("at once", "" if job["max_parallel"] is None else f"at most {job['max_parallel']} of its sweep"),
        ("command", sanitize(shlex.join(job["command"]))),
        ("directory", sanitize(job["workdir"])),
        ("log", sanitize(job["log"])),
        ("user", sanitize(job["user"]) or "the service's own"),
        ("team", sanitize(job["team"])),
        ("priority", f"{job['priority']:g}"),
        ("requests", _format_request(job)),
        ("limits", _format_limits(job["limits"])),
        ("deadline", format_clock(job["deadline_s"]) if job["deadline_s"] is not None else ""),
        (
            "runs on" if job["state"] == "RUNNING" else "ran on",
            format_gpus(job["allocation"]) if started else "",
        ),
        ("submitted", format_clock(job["submit_s"])),
        ("waited", format_duration(job["wait_s"]) if started else ""),
        ("started", format_clock(job["start_s"]) + _format_attempt(job) if started else ""),
        ("ended", format_clock(job["end_s"]) if job["end_s"] is not None else ""),
        ("time", format_time(job) + (f", in {job['starts']} attempts" if job["starts"] > 1 else "")),
        ("progress", format_progress(job)),
        ("saved", _format_saved(job)),
        ("preemption", job.get("protection", "")),
        ("energy", format_energy(job)),
        ("exit code", "" if job["exit_code"] is None else str(job["exit_code"])),
        ("signal", job.get("signal") or ""),
        ("metrics", ", ".join(f"{sanitize(name)} {value:.6g}" for name, value in job["metrics"].items())),
    ]
    return [(name, value) for name, value in rows if value]


def _format_request(job: dict[str, Any]) -> str:
    kinds = f" of {' or '.join(map(sanitize, job['gpu_types']))}" if job["gpu_types"] else ""
    model = f", for {sanitize(job['model'])}" if job["model"] else ""
    return f"{pluralize(job['gpus_asked'], 'GPU')}{kinds}{model}"


def _format_limits(limits: dict[str, Any]) -> str:
    parts = [
        f"time {format_seconds(limits['time_s'])}" if limits["time_s"] else "no time limit",
        f"{limits['memory_gib_per_gpu']:.4g} GiB for each GPU" if limits["memory_gib_per_gpu"] else "",
        f"{limits['cpus_per_gpu']:.4g} cores for each GPU" if limits["cpus_per_gpu"] else "",
        f"power {limits['power_w']:g} W for each GPU" if limits["power_w"] else "",
        f"energy {format_joules(limits['energy_j'])}" if limits["energy_j"] else "",
        "1 retry" if limits["retries"] == 1 else f"{limits['retries']} retries",
    ]
    return ", ".join(filter(None, parts))


def _format_saved(job: dict[str, Any]) -> str:
    saved = job.get("saved_progress")
    return "" if saved is None or job["state"] == "SUCCEEDED" else f"{100 * saved:.0f} % in its checkpoint"


def _format_dependency(one: dict[str, str]) -> str:
    name = f"job {one['job']}" if "job" in one else f"sweep {one['sweep']}"
    return f"{name} ({'any end' if one['when'] == 'end' else 'success'})"


def _format_attempt(job: dict[str, Any]) -> str:
    if job["starts"] < 2:
        return ""
    killed = f", after {pluralize(job['kill_count'], 'kill')}" if job["kill_count"] else ""
    return f", attempt {job['starts']}{killed}"
