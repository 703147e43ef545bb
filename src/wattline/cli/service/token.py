"""`wattline token`: create, list, rotate and revoke access tokens of the service."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from wattline.cli.arguments import add_actions, with_unit
from wattline.cli.output import notify, print_json, print_table
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_text import format_clock
from wattline.service.client import Client
from wattline.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    from wattline.cli.main import CommandParser

_SERVICE = "service"


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `wattline token`."""
    actions = add_actions(parser)
    new = actions.add_parser("add", aliases=["create"], help="create a token and print it, this once only")
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
    rotate = actions.add_parser("rotate", help="replace the value of a token, and print the new one")
    rotate.add_argument("name", metavar="NAME", help="name of the token; service: that of this machine")
    rotate.add_argument(
        "--grace",
        type=with_unit(parse_seconds),
        default=0.0,
        metavar="T",
        help="how long the old value is valid, as in 10m (default: not at all)",
    )
    add_connection_arguments(rotate)
    revoke = actions.add_parser("revoke", help="revoke a token")
    revoke.add_argument("name", metavar="NAME", help="name of the token; service: that of this machine")
    add_connection_arguments(revoke)


def run(args: argparse.Namespace) -> int:
    """Create, list, rotate or revoke tokens."""
    actions = {"add": _add, "create": _add, "list": _list, "rotate": _rotate, "revoke": _revoke}
    return actions[args.action](connect(args), args)


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


def _rotate(client: Client, args: argparse.Namespace) -> int:
    path = f"/tokens/{quote(args.name, safe='')}/rotate"
    created = client.post(path, {"grace_s": args.grace})
    is_own = args.name == _SERVICE
    if args.json:
        print_json({"rotated": args.name, "grace_s": args.grace, **({} if is_own else created)})
        return 0
    old = (
        f"the old value is valid for {format_seconds(args.grace)}" if args.grace else "the old one is invalid"
    )
    if is_own:
        notify(f"rotated the service's own token, which commands on this machine read from its file; {old}")
        return 0
    notify(f"new token of {args.name}, shown only once; {old}:")
    print(created["token"])
    return 0


def _revoke(client: Client, args: argparse.Namespace) -> int:
    now_s = time.time()
    others = [token for token in client.get("/tokens")["tokens"] if token["name"] != args.name]
    valid = [token for token in others if token["expires_s"] is None or token["expires_s"] > now_s]
    client.delete(f"/tokens/{quote(args.name, safe='')}")
    if args.json:
        print_json({"revoked": args.name})
    else:
        notify(f"revoked the token of {args.name}")
    if args.name == _SERVICE:
        notify("commands on this machine need WATTLINE_TOKEN until the service is started again")
    if not any(token["role"] == "operator" for token in valid):
        notify("WARNING: no operator's token is left; the next start of the service makes a new one")
    return 0
