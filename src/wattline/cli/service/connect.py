"""The service that a command talks to."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from wattline.errors import NotFound
from wattline.service.client import Client, find_service


def reach(args: argparse.Namespace) -> Client:
    """The service that the options, the environment, or the folder name."""
    return find_service(args.url, args.dir)


def path_of(job: str, what: str = "") -> str:
    """Where a job is, or something of it."""
    if not job.isdecimal():
        raise NotFound(f"there is no job {job!r}, expected a number", "wattline queue --all")
    return f"/jobs/{quote(job)}{f'/{what}' if what else ''}"
