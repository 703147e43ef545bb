"""`wattline release`: allow held jobs to start."""

from __future__ import annotations

import argparse

from wattline.cli.service.change_jobs import add_jobs_argument, add_selection_arguments, change_jobs
from wattline.cli.service.connect import connect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline release`."""
    add_jobs_argument(parser)
    add_selection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Release the jobs."""
    return change_jobs(connect(args), args, args.jobs, "release", lambda job: f"job {job['id']} is released")
