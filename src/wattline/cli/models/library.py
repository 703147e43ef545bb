"""`wattline library`: list the measured workloads and devices."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from wattline.cli.arguments import add_actions, add_json_argument

if TYPE_CHECKING:
    from wattline.cli.main import CommandParser


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `wattline library`."""
    actions = add_actions(parser)
    add_json_argument(actions.add_parser("list", help="list all workloads and devices"))
    show = actions.add_parser("show", help="show all details of a workload or a device")
    show.add_argument("name", metavar="NAME", help="a model (in any spelling, or SOURCE/NAME) or a device")
    show.add_argument("--gpu", metavar="KIND", help="only on this kind of GPU")
    add_json_argument(show)


def run(args: argparse.Namespace) -> int:
    """List everything, or show the entries with a name."""
    from wattline.cli.models.library_entries import list_entries, show_entries

    return list_entries(args) if args.action == "list" else show_entries(args)
