"""`wattline budget`: show or set the energy budgets."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from wattline.cli.arguments import add_actions
from wattline.cli.output import notify, print_json, print_table
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_text import format_bar, format_clock
from wattline.errors import ConfigError
from wattline.service.client import Client
from wattline.units import format_joules

if TYPE_CHECKING:
    from wattline.cli.main import CommandParser

_HINT = "12kW, 300kWh/day, 5GJ or eta=0.5; vision:12kW is a budget of team vision"


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `wattline budget`."""
    actions = add_actions(parser)
    show = actions.add_parser("show", help="print the budgets in force, and what is used and left of them")
    add_connection_arguments(show)
    change = actions.add_parser("set", help="replace all budgets by those given")
    change.add_argument(
        "budgets", nargs="*", metavar="B", help="12kW, 300kWh/day, 5GJ or eta=0.5; TEAM:B for one team"
    )
    change.add_argument(
        "--overshoot",
        type=float,
        metavar="F",
        help="let the sum of power caps be F times a budget of watts (default 1: caps alone keep it)",
    )
    change.add_argument("--clear", action="store_true", help="remove all budgets")
    add_connection_arguments(change)


def _announce_idle_teams(client: Client, budgets: list[str]) -> None:
    """Print the teams that have a budget, but of which no job was ever submitted: a name may be misspelt."""
    for team in dict.fromkeys(text.rpartition(":")[0] for text in budgets):
        if team and not client.get("/jobs", {"team": team, "limit": 1})["jobs"]:
            notify(f"team {team} has a budget, but no job of it was submitted so far: check its name")


def _print_usage(answer: dict[str, Any]) -> None:
    """Print a line for each budget: used, left, and when it is exhausted at the present rate."""
    rows = [_build_row(usage) for usage in answer["usage"]]
    print_table(("budget", "used", "left", "", "at the present rate"), rows, right=("used", "left"))
    notify(f"energy: {answer['method']}")


def _build_row(usage: dict[str, Any]) -> tuple[str, ...]:
    if usage["unit"] == "eta":
        return usage["budget"], "-", "-", "", "-"
    if usage["used"] is None:
        return usage["budget"], "unknown", "unknown", "", "-"
    if usage["unit"] == "W":
        used, left = f"{usage['used']:.0f} W", f"{usage['left']:.0f} W"
    else:
        used, left = format_joules(usage["used"]), format_joules(usage["left"])
    bar = format_bar(min(usage["used"] / usage["limit"], 1.0), 10) if usage["limit"] > 0 else ""
    return usage["budget"], used, left, bar, _describe_exhaustion(usage)


def _describe_exhaustion(usage: dict[str, Any]) -> str:
    if usage["unit"] == "W":
        return "held at each moment" if usage["left"] >= 0 else "exceeded"
    if usage["left"] <= 0:
        until = "" if usage["resets_s"] is None else f" until {format_clock(usage['resets_s'])}"
        return f"exhausted{until}"
    if usage["rate_w"] is None:
        return "not known yet"
    rate = f"{usage['rate_w']:.0f} W"
    if usage["exhausted_s"] is None:
        return f"{rate}: lasts until it renews" if usage["rate_w"] else f"{rate}: lasts"
    return f"{rate}: exhausted at {format_clock(usage['exhausted_s'])}"


def run(args: argparse.Namespace) -> int:
    """Print the budgets in force, after replacing them if asked to."""
    client = connect(args)
    before = answer = client.get("/budgets")
    if args.action == "set":
        if args.clear == bool(args.budgets):
            raise ConfigError("expected either budgets or --clear", _HINT)
        if args.overshoot is not None and not 1 <= args.overshoot <= 1000:
            raise ConfigError(f"--overshoot is {args.overshoot:g}, expected from 1 to 1000")
        try:
            answer = client.put("/budgets", {"budgets": args.budgets, "overshoot": args.overshoot})
        except ConfigError as error:
            if error.code != "bad_request":
                raise
            raise ConfigError(f"{' '.join(args.budgets)!r} is not a valid budget", _HINT) from None
        _announce_idle_teams(client, answer["budgets"])
        was = ", ".join(before["budgets"]) or "no budget"
        changed = any(before[key] != answer[key] for key in ("budgets", "overshoot"))
        notify(f"before: {was}" if changed else "budgets unchanged")
    budgets, overshoot = answer["budgets"], answer["overshoot"]
    if args.json:
        print_json({key: value for key, value in answer.items() if value is not None})
    elif budgets:
        if args.action == "show":
            _print_usage(answer)
        else:
            print("\n".join(budgets))
        if overshoot is not None:
            notify(
                f"overshoot {overshoot:g}: the sum of power caps is at most {overshoot:g} x each power budget"
            )
    else:
        notify("no energy budget is set")
    return 0
