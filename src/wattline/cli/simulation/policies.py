"""`wattline policies`: list the stages of policies and their knobs."""

from __future__ import annotations

import argparse
import inspect
import math
from dataclasses import fields
from typing import Any, cast

from wattline.cli.arguments import add_json_argument
from wattline.cli.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline policies`."""
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print every stage with its parameters and one line of documentation."""
    from wattline.policy.parser import list_stages

    rows: list[dict[str, Any]] = []
    for name, stage in sorted(list_stages().items()):
        knobs = {f.name: f.default for f in fields(cast(Any, stage))} if inspect.isclass(stage) else {}
        holds_budget = knobs.pop("budgets", None) is not None  # set by --budget, not in the policy text
        knobs.pop("price", None)  # likewise by --price
        does = (inspect.getdoc(stage) or "").split("\n")[0]
        rows.append({"name": name, "knobs": knobs, "holds_budget": holds_budget, "does": does})
    if args.json:
        print_json(
            [
                {**row, "knobs": {key: _encode_default(value) for key, value in row["knobs"].items()}}
                for row in rows
            ]
        )
        return 0
    for row in rows:
        details = ",".join(f"{key}={value}" for key, value in row["knobs"].items())
        details += "  holds --budget" if row["holds_budget"] else ""
        print(f"{row['name']:16} {row['does']}" + (f"\n{'':16} {details}" if details else ""))
    return 0


def _encode_default(value: Any) -> Any:
    """Return the default of a parameter for strict JSON: infinity by the name that users type."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
