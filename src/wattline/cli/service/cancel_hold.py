"""`wattline cancel`, `hold` and `release`: jobs that should end, wait, or wait no longer."""

from __future__ import annotations

import argparse
from typing import Any

from wattline.cli import exit_code
from wattline.cli.output import agreed, show_error, show_json, tell
from wattline.cli.service.connect import path_of, reach
from wattline.cli.service.job_text import clean, count
from wattline.errors import Unreachable, WattlineError

_DONE = {"cancel": "cancelled", "hold": "held", "release": "released"}


def run(args: argparse.Namespace) -> int:
    """Change each job; those for whom it fails do not keep others from it."""
    client = reach(args)
    names = list(dict.fromkeys(args.jobs))
    if args.verb == "cancel" and not args.yes:
        found = [client.get(path_of(name)) for name in names]
        if not agreed(f"cancel {_said(found)}?", "-y cancels without asking"):
            tell("nothing was cancelled")
            return 1
    changed: list[dict[str, Any]] = []
    problems: list[tuple[str, WattlineError]] = []
    for name in names:
        try:
            changed.append(client.post(path_of(name, args.verb)))
        except WattlineError as error:
            problems.append((name, error))
            if len(names) == 1 or (isinstance(error, Unreachable) and not changed):
                raise
    if args.json:
        errors = [{"job": name, "code": e.code, "message": e.message, "hint": e.hint} for name, e in problems]
        show_json({"jobs": changed, "errors": errors})
    else:
        for job in changed:
            print(job["id"])
            tell(_outcome(job, args.verb))
        for _, problem in problems:
            show_error(problem, False)
    return exit_code(problems[0][1]) if problems else 0


def _said(jobs: list[dict[str, Any]]) -> str:
    named = ", ".join(f"{job['id']} ({clean(job['name'])}, {job['state']})" for job in jobs[:5])
    more = f" and {len(jobs) - 5} more" if len(jobs) > 5 else ""
    return f"{count(len(jobs), 'job')}: {named}{more}"


def _outcome(job: dict[str, Any], verb: str) -> str:
    if verb == "cancel" and job["state"] == "RUNNING":
        return f"job {job['id']} was told to end"
    return f"job {job['id']} is {_DONE[verb]}"
