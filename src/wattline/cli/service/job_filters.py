"""Filters of jobs by state, team and user, shared by the commands that list and change jobs."""

from __future__ import annotations

import argparse

from wattline.service.states import STATES


def add_filter_arguments(parser: argparse.ArgumentParser, default_states: str) -> None:
    """Add `--state`, `--team` and `--user`; *default_states* describes the jobs without `--state`."""
    add = parser.add_argument
    add(
        "--state",
        action="append",
        type=str.upper,
        choices=STATES,
        metavar="S",
        help=f"jobs in this state, as in PENDING or FAILED (repeatable; default: {default_states})",
    )
    add("--team", metavar="T", help="jobs of this team")
    add("--user", metavar="U", help="jobs of this user")
