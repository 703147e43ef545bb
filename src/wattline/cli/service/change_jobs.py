"""Request that changes several jobs, shared by `cancel`, `hold` and `release`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from wattline.cli.main import exit_code
from wattline.cli.output import notify, print_error, print_json
from wattline.cli.service.connect import add_connection_arguments, job_path
from wattline.errors import Unreachable, WattlineError
from wattline.service.client import Client


def add_change_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the ids of the jobs, and the service."""
    parser.add_argument("jobs", nargs="+", metavar="JOB", help="job id, a number")
    add_connection_arguments(parser)


def change_jobs(
    client: Client, args: argparse.Namespace, verb: str, describe: Callable[[dict[str, Any]], str]
) -> int:
    """Post *verb* to each job of *args* and return the exit code; an error of one job stops no other."""
    names = list(dict.fromkeys(args.jobs))
    changed: list[dict[str, Any]] = []
    problems: list[tuple[str, WattlineError]] = []
    for name in names:
        try:
            changed.append(client.post(job_path(name, verb)))
        except WattlineError as error:
            problems.append((name, error))
            if len(names) == 1 or (isinstance(error, Unreachable) and not changed):
                raise
    if args.json:
        errors = [{"job": name, "code": e.code, "message": e.message, "hint": e.hint} for name, e in problems]
        print_json({"jobs": changed, "errors": errors})
    else:
        for job in changed:
            print(job["id"])
            notify(describe(job))
        for _, problem in problems:
            print_error(problem, False)
    return exit_code(problems[0][1]) if problems else 0
