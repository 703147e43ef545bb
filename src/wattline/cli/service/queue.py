"""`wattline queue`: list pending and running jobs, the newest last, with totals at the end."""

from __future__ import annotations

import argparse

from wattline.cli.output import print_json
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_filters import add_filter_arguments
from wattline.cli.service.job_text import LIVE, format_totals, print_jobs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline queue`."""
    parser.add_argument("--all", action="store_true", help="also list jobs that have ended")
    add_filter_arguments(parser, "jobs that have not ended, or all with --all")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the jobs and their totals."""
    states = args.state or (None if args.all else list(LIVE))
    jobs = connect(args).jobs({"state": states, "team": args.team, "user": args.user})
    if args.json:
        print_json({"jobs": jobs})
        return 0
    if jobs:
        print_jobs(jobs)
    print(format_totals(jobs))
    return 0
