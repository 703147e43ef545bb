"""`wattline power`: show the power of all GPUs over time."""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

from wattline.cli.arguments import with_unit
from wattline.cli.output import notify, print_json, print_table
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_text import format_bar, format_clock, sanitize
from wattline.errors import ConfigError
from wattline.units import parse_seconds

_LINES = 60  # of a table, unless --step is given
_LEAST_STEP_S = 10.0
_COLUMNS = ("time", "power", "caps", "busy", "jobs", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline power`."""
    add = parser.add_argument
    seconds = with_unit(parse_seconds)
    add("--since", type=seconds, default=3600.0, metavar="T", help="from so long ago (default 1h)")
    add("--until", type=seconds, default=0.0, metavar="T", help="until so long ago (default: now)")
    add("--step", type=seconds, metavar="T", help="mean over T, at least 10s (default: 60 lines)")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print a line for each step, with totals of all GPUs."""
    if not args.since > args.until:
        raise ConfigError(f"--since is {args.since:g} s ago, expected earlier than --until, {args.until:g} s")
    step_s = args.step or max(_LEAST_STEP_S, math.ceil((args.since - args.until) / _LINES / 10.0) * 10.0)
    if step_s < _LEAST_STEP_S:
        raise ConfigError(f"--step is {step_s:g} s, expected at least 10s: the time between two samples")
    now_s = time.time()
    query = {"since": now_s - args.since, "until": now_s - args.until, "step": step_s, "limit": 10_000}
    client = connect(args)
    answer = client.get("/power", query)
    while answer["next"] is not None:
        more = client.get("/power", {**query, "since": answer["next"]})
        answer = {**answer, "samples": answer["samples"] + more["samples"], "next": more["next"]}
    if args.json:
        print_json(answer)
    elif answer["samples"]:
        _print_samples(answer)
    else:
        notify("no power samples in that time")
    return 0


def _print_samples(answer: dict[str, Any]) -> None:
    samples = answer["samples"]
    most_w = max((point["power_w"] or 0.0 for point in samples), default=0.0)
    print_table(_COLUMNS, [_build_row(point, most_w) for point in samples], right=("power", "caps", "busy"))
    known = [point["power_w"] for point in samples if point["power_w"] is not None]
    mean = f"{sum(known) / len(known):.0f} W" if known else "unknown"
    print(f"mean {mean} ({sanitize(answer['method'])}), steps of {answer['step_s']:g} s")


def _build_row(point: dict[str, Any], most_w: float) -> tuple[str, ...]:
    power_w, cap_w, gpus = point["power_w"], point["cap_w"], point["gpus"]
    jobs = sorted({job for gpu in gpus for job in gpu["jobs"]}, key=int)
    return (
        format_clock(point["at_s"]),
        "unknown" if power_w is None else f"{power_w:.0f} W",
        "unknown" if cap_w is None else f"{cap_w:.0f} W",
        f"{sum(bool(gpu['jobs']) for gpu in gpus)}/{len(gpus)}",
        ",".join(jobs[:8]) + ("…" if len(jobs) > 8 else ""),
        "" if power_w is None or most_w <= 0 else format_bar(power_w / most_w, 20),
    )
