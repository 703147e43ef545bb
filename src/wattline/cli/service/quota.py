"""`wattline quota`: show and set quotas and shares of teams and users."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from wattline.cli.arguments import add_actions, non_negative_int, number
from wattline.cli.output import notify, print_json, print_table
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_text import sanitize
from wattline.errors import ConfigError
from wattline.service.client import Client
from wattline.units import format_seconds

if TYPE_CHECKING:
    from wattline.cli.main import CommandParser


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `wattline quota`."""
    actions = add_actions(parser)
    add_connection_arguments(actions.add_parser("show", help="print quotas, and the fair share of all users"))
    change = actions.add_parser("set", help="set the quota or share of a team or user")
    _add_owner_arguments(change)
    change.add_argument("--gpus", type=non_negative_int, metavar="N", help="GPUs that its jobs hold at once")
    change.add_argument(
        "--gpu-hours-per-week",
        type=number,
        metavar="H",
        help="GPU hours that its jobs use in seven days; then nothing new starts",
    )
    change.add_argument("--share", type=number, metavar="X", help="weight in the fair share (default 1)")
    add_connection_arguments(change)
    unset = actions.add_parser("unset", help="remove quota and share of a team or user")
    _add_owner_arguments(unset)
    add_connection_arguments(unset)


def _add_owner_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--team", metavar="T", help="the team")
    parser.add_argument("--user", metavar="U", help="the user, in all teams")


def run(args: argparse.Namespace) -> int:
    """Print the quotas, after changing one if asked to."""
    client = connect(args)
    if args.action == "show":
        result = client.get("/quotas")
    else:
        if bool(args.team) == bool(args.user):
            raise ConfigError(
                "expected either --team or --user", f"wattline quota {args.action} --team vision"
            )
        result = (_set if args.action == "set" else _unset)(client, args)
    if args.json:
        print_json(result)
    else:
        _print(result)
    return 0


def _set(client: Client, args: argparse.Namespace) -> Any:
    fields = {
        "team": args.team,
        "user": args.user,
        "gpus": args.gpus,
        "gpu_hours_per_week": args.gpu_hours_per_week,
        "share": args.share,
    }
    body = {name: value for name, value in fields.items() if value is not None}
    if len(body) == 1:
        raise ConfigError("expected at least one of --gpus, --gpu-hours-per-week and --share")
    return client.put("/quotas", body)


def _unset(client: Client, args: argparse.Namespace) -> Any:
    return client.delete("/quotas", {"team": args.team} if args.team else {"user": args.user})


def _print(result: dict[str, Any]) -> None:
    if result["quotas"]:
        print_table(
            ("quota of", "GPUs used", "GPU h in 7 days", "left", "free again", "share"),
            [_build_row(quota) for quota in result["quotas"]],
        )
    else:
        notify("no quota is set")
    if len(result["accounts"]) > 1:
        print()
        print_table(
            ("rank", "team", "user", "GPU h (decayed)", "of all", "share", "factor"),
            [_build_account_row(account) for account in result["accounts"]],
        )


def _build_row(quota: dict[str, Any]) -> tuple[str, ...]:
    owner = f"team {quota['team']}" if quota["team"] else f"user {quota['user']}"
    gpus, hours = quota["gpus"], quota["gpu_hours_per_week"]
    frees_s = quota["frees_s"]
    return (
        sanitize(owner),
        str(quota["gpus_used"]) + ("" if gpus is None else f" of {gpus}"),
        f"{quota['gpu_hours_used']:.3g}" + ("" if hours is None else f" of {hours:g}"),
        "-" if quota["gpu_hours_left"] is None else f"{quota['gpu_hours_left']:.3g}",
        "-" if frees_s is None else f"in {format_seconds(max(0.0, frees_s - time.time()))}",
        "1" if quota["share"] is None else f"{quota['share']:g}",
    )


def _build_account_row(account: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(account["rank"]),
        sanitize(account["team"]) or "-",
        sanitize(account["user"]) or "the service",
        f"{account['gpu_hours']:.3g}",
        f"{account['usage']:.0%}",
        f"{account['share']:.0%}",
        f"{account['factor']:.2f}",
    )
