"""`wattline optimize`: compute one plan for jobs and nodes described in a JSON file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from wattline.cli.arguments import add_json_argument
from wattline.cli.output import print_json
from wattline.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline optimize`."""
    parser.add_argument(
        "--input", required=True, metavar="FILE", help="jobs, nodes and prices as JSON; - is stdin"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the node, GPUs and power cap of each job."""
    from wattline.optimize.request import optimize

    answer = optimize(_read_input(args.input))
    if args.json:
        print_json(answer)
        return 0
    width = max((len(name) for name in answer["jobs"]), default=3)
    for name, place in answer["jobs"].items():
        print(f"{name:{width}}  {_describe_placement(place)}")
    gap = "unknown" if answer["gap"] is None else f"at most {100 * answer['gap']:.2f} %"
    if answer["reschedule_s"] is not None:
        print(
            f"next decision at {answer['reschedule_s']:.0f} s; cost until then"
            f" {answer['estimated_cost']:.4f} = {answer['energy_cost']:.4f} for energy"
            f" + {answer['tardiness_cost']:.4f} for tardiness"
        )
    print(f"{answer['method']}; distance to the best plan {gap}")
    return 0


def _describe_placement(place: dict[str, Any]) -> str:
    if place["node"] is None:
        return "waits"
    late_h = place["expected_tardiness_s"] / 3600
    late = f", {late_h:.1f} h late without a new decision" if late_h > 0 else ""
    cap = f" at {place['cap_w']} W" if place["cap_w"] else ""
    gpus = f"{place['gpus']} GPU{'' if place['gpus'] == 1 else 's'}"
    return f"{gpus} of {place['node']}{cap}{late}"


def _read_input(path: str) -> Any:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
