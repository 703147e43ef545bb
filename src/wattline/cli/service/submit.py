"""`wattline submit`: submit a job or a sweep, and wait for it if asked to."""

from __future__ import annotations

import argparse
import threading
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from wattline.cli.arguments import with_unit
from wattline.cli.output import notify, print_json
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_arguments import add_job_arguments, read_job_document
from wattline.cli.service.job_text import (
    format_energy,
    format_reason,
    format_time,
    format_totals,
    sanitize,
)
from wattline.cli.service.log_output import LogOutput
from wattline.cli.service.logs import follow_log
from wattline.cli.service.plan import print_plan
from wattline.cli.service.wait import first_exit_code, job_exit_code, wait_for_jobs
from wattline.errors import ConfigError, WattlineError
from wattline.service.client import Client
from wattline.units import parse_seconds

if TYPE_CHECKING:
    from wattline.cli.main import CommandParser

TIMED_OUT = 124
_MOST_FOLLOWED = 32  # each follows its log in a thread of its own
_DRAIN_S = 5.0


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `wattline submit`."""
    add_job_arguments(parser)
    add = parser.add_argument
    add("--hold", action="store_true", help="submit it held: it starts only after wattline release")
    add(
        "--allow-unsatisfiable",
        action="store_true",
        help="keep a job that this cluster can never run, for nodes that may come",
    )
    add("--dry-run", action="store_true", help="show the plan without submitting, as wattline plan does")
    add("-f", "--follow", action="store_true", help="print the output of the job until it ends")
    add("--wait", action="store_true", help="wait until the job ends and return its exit code")
    add(
        "--timeout",
        type=with_unit(parse_seconds),
        metavar="T",
        help="with --wait or -f: wait at most T, then return 124; the job continues",
    )
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Submit, print the job ids, and wait if asked to."""
    waits = args.wait or args.follow
    if args.timeout is not None and not waits:
        raise ConfigError("--timeout limits a wait, but there is none", "add --wait or -f")
    document = read_job_document(args)
    if args.follow and document.count > _MOST_FOLLOWED:
        raise ConfigError(
            f"-f can follow at most {_MOST_FOLLOWED} jobs, not {document.count}", "--wait, and wattline logs"
        )
    client = connect(args)
    if args.dry_run:
        return print_plan(client, document, args.json)
    key = uuid.uuid4().hex
    query = {"held": args.hold, "allow_unsatisfiable": args.allow_unsatisfiable}
    with document.locating_errors():
        jobs: list[dict[str, Any]] = client.post("/jobs", document.document, query, key)["jobs"]
    notify(_describe_submission(jobs))
    if not (args.follow or args.json):
        print("\n".join(job["id"] for job in jobs), flush=True)
    code = 0
    if waits:
        jobs, code = _wait(client, jobs, args)
    if args.json:
        print_json({"jobs": jobs})
    return code


def _describe_submission(jobs: list[dict[str, Any]]) -> str:
    first, last = jobs[0], jobs[-1]
    ids = f"job {first['id']}" if len(jobs) == 1 else f"{len(jobs)} jobs, {first['id']} to {last['id']}"
    state = " and held" if first["held"] else ""
    return f"{ids} ({sanitize(first['name'])}) submitted{state}"


def _wait(
    client: Client, jobs: list[dict[str, Any]], args: argparse.Namespace
) -> tuple[list[dict[str, Any]], int]:
    threads = _follow_logs(client, jobs, args.json) if args.follow else []
    subject = "the job continues" if len(jobs) == 1 else "the jobs continue"
    try:
        now, ended = wait_for_jobs(client, jobs, args.timeout, quiet=args.follow)
    except KeyboardInterrupt:
        notify(f"{subject}; to end: wattline cancel {' '.join(job['id'] for job in jobs[:5])}")
        raise
    if not ended:
        notify(f"timeout after {args.timeout:g} s, {subject}: {format_totals(now)}")
        return now, TIMED_OUT
    for thread in threads:
        thread.join(_DRAIN_S)
    for job in now if len(now) == 1 else [job for job in now if job_exit_code(job)]:
        notify(_describe_end(job))
    if len(now) > 1:
        notify(format_totals(now))
    return now, first_exit_code(now)


def _describe_end(job: dict[str, Any]) -> str:
    reason = f": {format_reason(job)}" if job_exit_code(job) and format_reason(job) else ""
    return f"job {job['id']} {job['state']}, {format_time(job)}, {format_energy(job)}{reason}"


def _follow_logs(client: Client, jobs: list[dict[str, Any]], on_stderr: bool) -> list[threading.Thread]:
    """Print the output of all jobs from threads, with their ids if there are several."""
    threads = []
    for job in jobs:
        prefix = f"{job['id']}: " if len(jobs) > 1 else ""
        work = partial(_print_log, client, job["id"], prefix, on_stderr)
        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()
    return threads


def _print_log(client: Client, job: str, prefix: str, on_stderr: bool) -> None:
    try:
        follow_log(client, job, {}, LogOutput(prefix, on_stderr))
    except WattlineError as error:
        notify(f"the log of job {job} cannot be followed: {error.message}")
    except BrokenPipeError:
        pass  # the reader of stdout has gone; the main thread still waits for the job
