"""`wattline cancel`: cancel pending or running jobs."""

from __future__ import annotations

import argparse
from typing import Any

from wattline.cli.service.change_jobs import add_jobs_argument, add_selection_arguments, change_jobs
from wattline.cli.service.connect import connect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline cancel`."""
    add_jobs_argument(parser)
    add_selection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Ask for confirmation and cancel the jobs."""
    return change_jobs(connect(args), args, args.jobs, "cancel", _describe)


def _describe(job: dict[str, Any]) -> str:
    return f"job {job['id']} is {'being ' if job['state'] == 'RUNNING' else ''}cancelled"
