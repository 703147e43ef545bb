"""`wattline budget`: how much energy may be used, by whom and when?"""

from __future__ import annotations

import argparse

from wattline.cli.output import show_json, tell
from wattline.cli.service.connect import reach
from wattline.errors import ConfigError

_HINT = "12kW, 300kWh/day, 5GJ, eta=0.5; vision:12kW is of one team"


def run(args: argparse.Namespace) -> int:
    """Show the budgets in force, or set others."""
    client = reach(args)
    before = client.get("/budgets")["budgets"]
    budgets = before
    if args.action == "set":
        if args.clear == bool(args.budgets):
            raise ConfigError("expected budgets, or --clear and none", _HINT)
        try:
            budgets = client.put("/budgets", {"budgets": args.budgets})["budgets"]
        except ConfigError as error:
            if error.code != "bad_request":
                raise
            raise ConfigError(f"{' '.join(args.budgets)!r} cannot be held as a budget", _HINT) from None
        was = ", ".join(before) or "energy was not limited"
        tell(f"before: {was}" if before != budgets else "that is as it was")
    if args.json:
        show_json({"budgets": budgets})
    elif budgets:
        print("\n".join(budgets))
    else:
        tell("energy is not limited")
    return 0
