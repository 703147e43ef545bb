"""`wattline policies`: list the stages of policies and the placers, with their knobs."""

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
    """Print every stage and placer with its parameters and one line of documentation."""
    rows = describe_all()
    if args.json:
        print_json(
            [
                {**row, "knobs": {key: _encode_default(value) for key, value in row["knobs"].items()}}
                for row in rows
            ]
        )
        return 0
    for number, row in enumerate(rows):
        if number == 0 or row["kind"] != rows[number - 1]["kind"]:
            title = "Stages, joined by + in --policy:" if number == 0 else "\nPlacers, for --place:"
            print(title)
        details = ",".join(f"{key}={value}" for key, value in row["knobs"].items())
        details += "  holds --budget" if row["holds_budget"] else ""
        print(f"{row['name']:16} {row['does']}" + (f"\n{'':16} {details}" if details else ""))
    return 0


def describe_all() -> list[dict[str, Any]]:
    """Return the stages, then the placers: name, kind, knobs with defaults, what each does."""
    from wattline.placement.parser import list_placers
    from wattline.policy.parser import list_stages

    rows = [_describe("stage", name, stage) for name, stage in sorted(list_stages().items())]
    return rows + [_describe("placer", name, placer) for name, placer in list_placers().items()]


def _describe(kind: str, name: str, thing: Any) -> dict[str, Any]:
    knobs = {f.name: f.default for f in fields(cast(Any, thing))} if inspect.isclass(thing) else {}
    holds_budget = knobs.pop("budgets", None) is not None  # set by --budget, not in the policy text
    knobs.pop("price", None)  # likewise by --price
    knobs.pop("place", None)  # the placer in front of the +
    does = (inspect.getdoc(thing) or "").split("\n")[0]
    return {"name": name, "kind": kind, "knobs": knobs, "holds_budget": holds_budget, "does": does}


def _encode_default(value: Any) -> Any:
    """Return the default of a parameter for strict JSON: infinity by the name that users type."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
