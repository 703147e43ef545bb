"""`wattline priority JOB N`: change the priority of a job."""

from __future__ import annotations

import argparse

from wattline.cli.arguments import number
from wattline.cli.output import print_json
from wattline.cli.service.connect import add_connection_arguments, add_job_id_argument, connect, job_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline priority`."""
    add_job_id_argument(parser)
    parser.add_argument(
        "priority", type=number, metavar="N", help="jobs with a higher priority start first (default 0)"
    )
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Set the priority of a job."""
    job = connect(args).patch(job_path(args.job), {"priority": args.priority})
    if args.json:
        print_json(job)
    else:
        print(f"job {job['id']} has priority {job['priority']:g}")
    return 0
