"""`wattline backup`: copy the state of a service, which may run, to a new folder."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from wattline.cli.arguments import add_json_argument
from wattline.cli.output import print_json
from wattline.service.client import service_folder
from wattline.units import pluralize


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline backup`."""
    parser.add_argument("target", metavar="TARGET", help="folder to write, which must not exist")
    parser.add_argument(
        "--dir",
        metavar="DIR",
        help="directory of the service (default $WATTLINE_DIR, else ~/.local/state/wattline/service)",
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Write the backup and print what it holds."""
    from wattline.service.backup import write_backup

    target = Path(os.path.abspath(args.target))
    result = write_backup(service_folder(args.dir), target)
    if args.json:
        print_json({"target": str(target), **asdict(result)})
    else:
        size = f"{result.bytes / 2**20:.1f} MiB"
        print(f"{target}: {pluralize(result.jobs, 'job')}, {pluralize(result.files, 'file')}, {size}")
    return 0
