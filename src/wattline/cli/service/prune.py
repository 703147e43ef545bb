"""`wattline prune`: delete or archive old jobs, logs and events."""

from __future__ import annotations

import argparse
import os
from typing import Any

from wattline.cli.output import confirm, notify, print_json
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_text import pluralize
from wattline.service.settings import parse_age, parse_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline prune`."""
    add = parser.add_argument
    add(
        "--older-than",
        metavar="AGE",
        help="delete jobs that ended before this, as in 30d (default: settings)",
    )
    add("--max-size", metavar="SIZE", help="delete the oldest jobs beyond this size, as in 10G")
    add("--archive", metavar="DIR", help="write deleted jobs, their events and logs to this folder first")
    add("--dry-run", action="store_true", help="show what would be deleted")
    add("-y", "--yes", action="store_true", help="do not ask")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Show what would be deleted, ask, and delete it."""
    request: dict[str, Any] = {}
    if args.older_than is not None:
        parse_age(args.older_than, "--older-than")
        request["older_than"] = args.older_than
    if args.max_size is not None:
        parse_size(args.max_size, "--max-size")
        request["max_size"] = args.max_size
    if args.archive is not None:
        request["archive"] = os.path.abspath(args.archive)
    client = connect(args)
    if args.dry_run or not args.yes:
        report = client.post("/prune", {**request, "dry_run": True})
        if not args.dry_run:
            if not confirm(f"delete {_describe(report)}?", "-y deletes without asking"):
                notify("nothing was deleted")
                return 1
            report = client.post("/prune", request)
    else:
        report = client.post("/prune", request)
    if args.json:
        print_json(report)
    else:
        print(f"{'would delete' if report['dry_run'] else 'deleted'} {_describe(report)}")
        if report["archive"]:
            notify(f"archive: {report['archive']}")
    return 0


def _describe(report: dict[str, Any]) -> str:
    """Return `12 jobs, 48 events, 2 epochs, 0 log files; 1.2 MiB of files; 3 jobs are kept`."""
    numbers = ", ".join(
        pluralize(report[key], noun)
        for key, noun in (
            ("jobs", "job"),
            ("events", "event"),
            ("epochs", "epoch"),
            ("log_files", "log file"),
        )
    )
    kept = report["kept_jobs"]
    return f"{numbers}; {report['bytes'] / 2**20:.1f} MiB of files; {pluralize(kept, 'job')} kept"
