"""`wattline policies`: the stages policies are made of, and their knobs."""

from __future__ import annotations

import argparse
import inspect
import math
from dataclasses import fields
from typing import Any, cast

from wattline.cli.output import show_json
from wattline.policy.parser import stage_names


def run(args: argparse.Namespace) -> int:
    """List every stage with its knobs and what it does."""
    rows: list[dict[str, Any]] = []
    for name, thing in sorted(stage_names().items()):
        knobs = {f.name: f.default for f in fields(cast(Any, thing))} if inspect.isclass(thing) else {}
        holds = knobs.pop("budgets", None) is not None  # given by --budget, not by a knob
        knobs.pop("price", None)  # likewise by --price
        does = (inspect.getdoc(thing) or "").split("\n")[0]
        rows.append({"name": name, "knobs": knobs, "holds_budget": holds, "does": does})
    if args.json:
        show_json(
            [{**row, "knobs": {key: _plain(value) for key, value in row["knobs"].items()}} for row in rows]
        )
        return 0
    for row in rows:
        said = ",".join(f"{key}={value}" for key, value in row["knobs"].items())
        said += "  holds --budget" if row["holds_budget"] else ""
        print(f"{row['name']:16} {row['does']}" + (f"\n{'':16} {said}" if said else ""))
    return 0


def _plain(value: Any) -> Any:
    """A knob's default as strict JSON has it: infinity by its name, as it is typed."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
