"""Connection of a command to the service, and the arguments that name it."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from wattline.cli.arguments import add_json_argument
from wattline.errors import NotFound
from wattline.service.client import Client, find_service


def add_connection_arguments(parser: argparse.ArgumentParser, json: bool = True) -> None:
    """Add `--url` and `--dir`, and `--json` unless the command prints no data."""
    parser.add_argument(
        "--url", metavar="URL", help="address of the service (default $WATTLINE_URL, else from --dir)"
    )
    parser.add_argument(
        "--dir",
        metavar="DIR",
        help="directory of the service (default $WATTLINE_DIR, else ~/.local/state/wattline/service)",
    )
    if json:
        add_json_argument(parser)


def add_job_id_argument(parser: argparse.ArgumentParser) -> None:
    """Add the id of one job."""
    parser.add_argument("job", metavar="JOB", help="job id, a number")


def connect(args: argparse.Namespace) -> Client:
    """Return a client of the service that the arguments, the environment or the directory name."""
    return find_service(args.url, args.dir)


def job_path(job: str, part: str = "") -> str:
    """Return the path of a job in the API, or of a *part* of it such as `logs`."""
    if not job.isdecimal():
        raise NotFound(f"{job!r} is not a job id, expected a number", "wattline queue --all")
    return f"/jobs/{quote(job)}{f'/{part}' if part else ''}"
