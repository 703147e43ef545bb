"""`wattline hold`: prevent pending jobs from starting."""

from __future__ import annotations

import argparse

from wattline.cli.service.change_jobs import add_jobs_argument, add_selection_arguments, change_jobs
from wattline.cli.service.connect import connect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline hold`."""
    add_jobs_argument(parser)
    add_selection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Hold the jobs."""
    return change_jobs(connect(args), args, args.jobs, "hold", lambda job: f"job {job['id']} is held")
