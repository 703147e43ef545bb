"""`wattline queue`: list pending and running jobs, the newest last, with totals at the end."""

from __future__ import annotations

import argparse

from wattline.cli.output import print_json
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_text import LIVE, format_totals, print_jobs
from wattline.service.states import STATES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline queue`."""
    add = parser.add_argument
    add("--all", action="store_true", help="also list jobs that have ended")
    add(
        "--state",
        action="append",
        type=str.upper,
        choices=STATES,
        metavar="S",
        help="only jobs in this state, as in PENDING or FAILED (repeatable)",
    )
    add("--team", metavar="T", help="only jobs of this team")
    add("--user", metavar="U", help="only jobs of this user")
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
