"""`wattline policies`: the stages policies are made of, and their knobs."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import fields
from typing import Any, cast

from wattline.cli.show import show_json
from wattline.policy.parse import stage_names


def run(args: argparse.Namespace) -> int:
    """List every stage with its knobs and what it does."""
    rows: list[dict[str, Any]] = []
    for name, thing in sorted(stage_names().items()):
        knobs = {f.name: f.default for f in fields(cast(Any, thing))} if inspect.isclass(thing) else {}
        rows.append({"name": name, "knobs": knobs, "does": (inspect.getdoc(thing) or "").split("\n")[0]})
    if args.json:
        show_json(rows)
        return 0
    for row in rows:
        said = ",".join(f"{key}={value}" for key, value in row["knobs"].items())
        print(f"{row['name']:10} {row['does']}" + (f"\n{'':10} {said}" if said else ""))
    return 0
