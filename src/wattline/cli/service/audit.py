"""`wattline audit`: print what operators did."""

from __future__ import annotations

import argparse
import json
import time
from datetime import datetime
from typing import Any

from wattline.cli.output import notify, print_json, print_table
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_text import format_clock, sanitize
from wattline.errors import ConfigError
from wattline.units import parse_seconds

_PAGE = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline audit`."""
    parser.add_argument(
        "--since", metavar="T", help="a time such as 2026-11-17T09:00, or an age such as 7d (default: all)"
    )
    parser.add_argument("--by", default="", metavar="NAME", help="only changes by the token of this name")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the audit log, oldest first."""
    client = connect(args)
    since_s = 0.0 if args.since is None else _parse_since(args.since)
    records: list[dict[str, Any]] = []
    after = 0
    while True:
        query = {"since": since_s, "by": args.by, "after": after, "limit": _PAGE}
        page = client.get("/audit", query)["records"]
        records += page
        if len(page) < _PAGE:
            break
        after = page[-1]["seq"]
    if args.json:
        print_json({"records": records})
    elif records:
        print_table(("at", "by", "action", "what", "change"), [_build_row(record) for record in records])
    else:
        notify("no operator has changed anything" + (" since then" if args.since or args.by else ""))
    return 0


def _parse_since(text: str) -> float:
    try:
        return time.time() - parse_seconds(text)
    except ValueError:
        pass
    try:
        return max(0.0, datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"--since is {text!r}, expected a time such as 2026-11-17T09:00, or 7d") from None


def _build_row(record: dict[str, Any]) -> tuple[str, ...]:
    what = record["subject"] + (f" of {record['owner']}" if record["owner"] else "")
    return (
        format_clock(record["at_s"]),
        sanitize(record["by"]) or "-",
        sanitize(record["action"]),
        sanitize(what),
        sanitize(_describe_change(record["before"], record["after"])),
    )


def _describe_change(before: Any, after: Any) -> str:
    if before is None and after is None:
        return ""
    if before is None:
        return _format_value(after)
    return f"{_format_value(before)} → {_format_value(after)}"


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        shown = {k: v for k, v in value.items() if k not in ("team", "user")} or value
        return ", ".join(f"{k} {v}" for k, v in shown.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
