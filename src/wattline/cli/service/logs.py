"""`wattline logs JOB`: print the output of a job."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from wattline.cli.arguments import non_negative_int, positive_int
from wattline.cli.output import notify
from wattline.cli.service.connect import add_connection_arguments, add_job_id_argument, connect, job_path
from wattline.cli.service.job_text import LIVE, format_reason
from wattline.cli.service.log_output import LogOutput
from wattline.service.client import Client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline logs`."""
    add_job_id_argument(parser)
    add = parser.add_argument
    add("-f", "--follow", action="store_true", help="print new output until the job ends")
    add("--rank", type=non_negative_int, default=0, metavar="N", help="output of this rank (default 0)")
    add("--attempt", type=positive_int, metavar="N", help="output of this attempt (default: the last)")
    add("--tail", type=non_negative_int, metavar="N", help="only the last N lines")
    add_connection_arguments(parser, json=False)


def run(args: argparse.Namespace) -> int:
    """Print the log of a job, once or as it grows."""
    client = connect(args)
    query = {"rank": args.rank, "attempt": args.attempt, "tail": args.tail}
    if args.follow:
        _explain_silence(client.get(job_path(args.job)), "waiting for its output")
        state = follow_log(client, args.job, query, LogOutput())
        notify(f"job {args.job} is {state}")
        return 0
    size = 0
    for block in client.text(job_path(args.job, "logs"), query):
        sys.stdout.buffer.write(block)
        size += len(block)
    sys.stdout.flush()
    if size == 0 and args.tail != 0:
        job = client.get(job_path(args.job))
        if not _explain_silence(job, "there is no output yet"):
            notify(f"job {args.job} is {job['state']} and has written no output")
    return 0


def _explain_silence(job: dict[str, Any], consequence: str) -> bool:
    """Print why a job without an attempt has no output; return False if it was started."""
    if job["starts"]:
        return False
    if job["state"] in LIVE:
        reason = f": {format_reason(job)}" if format_reason(job) else ""
        notify(f"job {job['id']} has not started, {consequence}{reason}")
    else:
        notify(f"job {job['id']} is {job['state']} and was never started, so there is no output")
    return True


def follow_log(client: Client, job: str, query: dict[str, int | None], output: LogOutput) -> str:
    """Write the output of a job as it comes until the job ends; return its final state."""
    query = {**query, "raw": True}
    state = "unknown"
    for event in client.follow(job_path(job, "logs"), query, resume_query={"tail": 0}, on_notice=notify):
        if event.kind == "end":
            state = event.data
        elif event.kind == "output":
            output.write(json.loads(event.data).encode("utf-8", "surrogateescape"))
    output.close()
    return state
