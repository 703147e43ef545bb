"""`wattline logs JOB`: print the output of a job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from wattline.cli.arguments import non_negative_int, positive_int
from wattline.cli.output import notify
from wattline.cli.service.connect import add_connection_arguments, add_job_id_argument, connect, job_path
from wattline.service.client import Client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline logs`."""
    add_job_id_argument(parser)
    add = parser.add_argument
    add("-f", "--follow", action="store_true", help="print new lines until the job ends")
    add("--rank", type=non_negative_int, default=0, metavar="N", help="output of this rank (default 0)")
    add("--attempt", type=positive_int, metavar="N", help="output of this attempt (default: the last)")
    add("--tail", type=non_negative_int, metavar="N", help="only the last N lines")
    add_connection_arguments(parser, json=False)


def run(args: argparse.Namespace) -> int:
    """Print the log of a job, once or as it grows."""
    client = connect(args)
    query = {"rank": args.rank, "attempt": args.attempt, "tail": args.tail}
    if args.follow:
        state = follow_log(client, args.job, query, _print_line)
        notify(f"job {args.job} is {state}")
        return 0
    for block in client.text(job_path(args.job, "logs"), query):
        sys.stdout.buffer.write(block)
    sys.stdout.flush()
    return 0


def follow_log(
    client: Client, job: str, query: dict[str, int | None], print_line: Callable[[str], None]
) -> str:
    """Print the lines of a log as they come until the job ends; return its final state."""
    for event in client.follow(job_path(job, "logs"), query, resume_query={"tail": 0}, on_notice=notify):
        if event.kind == "end":
            return event.data
        print_line(event.data)
    return "unknown"


def _print_line(text: str) -> None:
    print(text, flush=True)
