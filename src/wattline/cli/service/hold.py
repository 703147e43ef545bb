"""`wattline hold`: prevent pending jobs from starting."""

from __future__ import annotations

import argparse

from wattline.cli.service.change_jobs import add_change_arguments, change_jobs
from wattline.cli.service.connect import connect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline hold`."""
    add_change_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Hold the jobs."""
    return change_jobs(connect(args), args, "hold", lambda job: f"job {job['id']} is held")
