"""`wattline logs JOB`: what did a job print?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from wattline.cli.output import tell
from wattline.cli.service.connect import path_of, reach
from wattline.service.client import Client


def run(args: argparse.Namespace) -> int:
    """Print the log of a job, to its end or as it grows."""
    client = reach(args)
    query = {"rank": args.rank, "attempt": args.attempt, "tail": args.tail}
    if args.follow:
        state = follow(client, args.job, query, _line)
        tell(f"job {args.job} is {state}")
        return 0
    for block in client.text(path_of(args.job, "logs"), query):
        sys.stdout.buffer.write(block)
    sys.stdout.flush()
    return 0


def follow(client: Client, job: str, query: dict[str, int | None], show: Callable[[str], None]) -> str:
    """Show the lines of a log as they come, until the job is over; answers how it ended."""
    for told in client.follow(path_of(job, "logs"), query, again={"tail": 0}, tell=tell):
        if told.kind == "end":
            return told.data
        show(told.data)
    return "unknown"


def _line(text: str) -> None:
    print(text, flush=True)
