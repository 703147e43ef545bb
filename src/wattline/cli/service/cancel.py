"""`wattline cancel`: cancel pending or running jobs."""

from __future__ import annotations

import argparse
from typing import Any

from wattline.cli.output import confirm, notify
from wattline.cli.service.change_jobs import add_change_arguments, change_jobs
from wattline.cli.service.connect import connect, job_path
from wattline.cli.service.job_text import pluralize, sanitize

_LISTED = 5  # jobs named in the question


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline cancel`."""
    add_change_arguments(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="cancel without asking")


def run(args: argparse.Namespace) -> int:
    """Ask for confirmation and cancel the jobs."""
    client = connect(args)
    if not args.yes:
        jobs = [client.get(job_path(name)) for name in dict.fromkeys(args.jobs)]
        if not confirm(f"cancel {_list_jobs(jobs)}?", "-y cancels without asking"):
            notify("no job was cancelled")
            return 1
    return change_jobs(client, args, "cancel", _describe)


def _describe(job: dict[str, Any]) -> str:
    return f"job {job['id']} is {'being ' if job['state'] == 'RUNNING' else ''}cancelled"


def _list_jobs(jobs: list[dict[str, Any]]) -> str:
    names = ", ".join(f"{job['id']} ({sanitize(job['name'])}, {job['state']})" for job in jobs[:_LISTED])
    more = f" and {len(jobs) - _LISTED} more" if len(jobs) > _LISTED else ""
    return f"{pluralize(len(jobs), 'job')}: {names}{more}"
