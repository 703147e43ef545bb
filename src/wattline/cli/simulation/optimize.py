"""`wattline optimize`: one decision for jobs and nodes that are described in a file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from wattline.cli.output import show_json
from wattline.errors import ConfigError
from wattline.optimize.request import optimize


def run(args: argparse.Namespace) -> int:
    """Answer with where each job should run."""
    answer = optimize(_read(args.input))
    if args.json:
        show_json(answer)
        return 0
    width = max((len(name) for name in answer["jobs"]), default=3)
    for name, place in answer["jobs"].items():
        if place["node"] is None:
            print(f"{name:{width}}  waits")
            continue
        late_h = place["expected_tardiness_s"] / 3600
        late = f", {late_h:.1f} h late if nobody asks again" if late_h > 0 else ""
        cap = f" at {place['cap_w']} W" if place["cap_w"] else ""
        gpus = f"{place['gpus']} GPU{'' if place['gpus'] == 1 else 's'}"
        print(f"{name:{width}}  {gpus} of {place['node']}{cap}{late}")
    gap = "unknown" if answer["gap"] is None else f"at most {100 * answer['gap']:.2f} %"
    if answer["reschedule_s"] is not None:
        print(
            f"ask again at {answer['reschedule_s']:.0f} s; until then {answer['estimated_cost']:.4f} ="
            f" {answer['energy_cost']:.4f} for energy + {answer['tardiness_cost']:.4f} for being late"
        )
    print(f"{answer['method']}; distance to the best plan {gap}")
    return 0


def _read(path: str) -> Any:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
