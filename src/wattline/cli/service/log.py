"""`wattline log`: all decisions of an epoch of the service, as `wattline replay` reads them."""

from __future__ import annotations

import argparse
import sys

from wattline.cli.service.connect import reach


def run(args: argparse.Namespace) -> int:
    """Write a run log to stdout."""
    for block in reach(args).text("/log", {"epoch": args.epoch}):
        sys.stdout.buffer.write(block)
    sys.stdout.flush()
    return 0
