"""`wattline runlog`: print the run log of the service, for `wattline replay`."""

from __future__ import annotations

import argparse
import sys

from wattline.cli.arguments import positive_int
from wattline.cli.service.connect import add_connection_arguments, connect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline runlog`."""
    parser.add_argument(
        "epoch",
        nargs="?",
        type=positive_int,
        metavar="EPOCH",
        help="start of the service, counted from 1 (default: the current one)",
    )
    add_connection_arguments(parser, json=False)


def run(args: argparse.Namespace) -> int:
    """Write a run log to stdout."""
    for block in connect(args).text("/log", {"epoch": args.epoch}):
        sys.stdout.buffer.write(block)
    sys.stdout.flush()
    return 0
