"""`wattline token`: create, list and revoke access tokens of the service."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from wattline.cli.arguments import add_actions, with_unit
from wattline.cli.output import notify, print_json, print_table
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_text import format_clock
from wattline.service.client import Client
from wattline.units import parse_seconds

if TYPE_CHECKING:
    from wattline.cli.main import CommandParser


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `wattline token`."""
    actions = add_actions(parser)
    new = actions.add_parser("add", help="create a token and print it, this once only")
    new.add_argument("name", metavar="NAME", help="name of the token's owner")
    new.add_argument(
        "--role",
        required=True,
        choices=("viewer", "user", "operator"),
        help="viewer: may read; user: may also submit and change own jobs; operator: may do everything",
    )
    new.add_argument(
        "--user", metavar="U", help="Unix user that runs the jobs (default: the user of the service)"
    )
    new.add_argument(
        "--lasts", type=with_unit(parse_seconds), metavar="T", help="validity, as in 30d (default: unlimited)"
    )
    add_connection_arguments(new)
    add_connection_arguments(actions.add_parser("list", help="list the tokens"))
    revoke = actions.add_parser("revoke", help="revoke all tokens of a name")
    revoke.add_argument("name", metavar="NAME", help="name of the tokens' owner")
    add_connection_arguments(revoke)


def run(args: argparse.Namespace) -> int:
    """Create, list or revoke tokens."""
    return {"add": _add, "list": _list, "revoke": _revoke}[args.action](connect(args), args)


def _add(client: Client, args: argparse.Namespace) -> int:
    fields = {"name": args.name, "role": args.role, "user": args.user, "lasts_s": args.lasts}
    created = client.post("/tokens", {name: value for name, value in fields.items() if value is not None})
    if args.json:
        print_json({"name": args.name, "role": args.role, **created})
        return 0
    notify(f"token of {args.name}, shown only once; set WATTLINE_TOKEN to it:")
    print(created["token"])
    return 0


def _list(client: Client, args: argparse.Namespace) -> int:
    tokens = client.get("/tokens")["tokens"]
    if args.json:
        print_json({"tokens": tokens})
        return 0
    print_table(
        ("name", "role", "jobs run as", "created", "expires"), [_build_row(token) for token in tokens]
    )
    return 0


def _build_row(token: dict[str, Any]) -> tuple[str, ...]:
    user = token["user"] or "the service"
    expires = "never" if token["expires_s"] is None else format_clock(token["expires_s"])
    return token["name"], token["role"], user, format_clock(token["created_s"]), expires


def _revoke(client: Client, args: argparse.Namespace) -> int:
    client.delete(f"/tokens/{quote(args.name, safe='')}")
    if args.json:
        print_json({"revoked": args.name})
    else:
        notify(f"revoked all tokens of {args.name}")
    return 0
