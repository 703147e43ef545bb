"""`wattline token`: who may ask the service for what?"""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from wattline.cli.output import show_json, tell
from wattline.cli.service.connect import reach
from wattline.cli.service.job_text import clock
from wattline.grid import grid
from wattline.service.client import Client


def run(args: argparse.Namespace) -> int:
    """Make, list or revoke tokens."""
    return {"add": _add, "list": _list, "revoke": _revoke}[args.action](reach(args), args)


def _add(client: Client, args: argparse.Namespace) -> int:
    wanted = {"name": args.name, "role": args.role, "user": args.user, "lasts_s": args.lasts}
    made = client.post("/tokens", {name: value for name, value in wanted.items() if value is not None})
    if args.json:
        show_json({"name": args.name, "role": args.role, **made})
        return 0
    tell(f"the token of {args.name}, shown this once; it goes into WATTLINE_TOKEN:")
    print(made["token"])
    return 0


def _list(client: Client, args: argparse.Namespace) -> int:
    tokens = client.get("/tokens")["tokens"]
    if args.json:
        show_json({"tokens": tokens})
        return 0
    print(
        "\n".join(
            grid([("name", "role", "jobs run as", "made", "expires"), *map(_row, tokens)], lambda _: "<")
        )
    )
    return 0


def _row(token: dict[str, Any]) -> tuple[str, ...]:
    expires = "never" if token["expires_s"] is None else clock(token["expires_s"])
    return token["name"], token["role"], token["user"] or "the service", clock(token["made_s"]), expires


def _revoke(client: Client, args: argparse.Namespace) -> int:
    client.delete(f"/tokens/{quote(args.name, safe='')}")
    if args.json:
        show_json({"revoked": args.name})
    else:
        tell(f"the tokens of {args.name} are good no longer")
    return 0
