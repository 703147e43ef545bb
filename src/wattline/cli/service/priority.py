"""`wattline priority JOB N`: change the priority of jobs."""

from __future__ import annotations

import argparse

from wattline.cli.arguments import number
from wattline.cli.output import print_json
from wattline.cli.service.change_jobs import add_selection_arguments, change_jobs
from wattline.cli.service.connect import connect, job_path
from wattline.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline priority`."""
    parser.usage = f"{parser.prog} [options] [JOB ...] N"
    parser.add_argument(
        "words",
        nargs="+",
        metavar="JOB ... N",
        help="job ids, lists or ranges (12, 12,14, 1..500), then the priority; higher starts first",
    )
    add_selection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Set the priority of the selected jobs."""
    *words, text = args.words
    try:
        priority = number(text)
    except argparse.ArgumentTypeError:
        raise ConfigError(
            f"{text!r} is not a priority, expected a number", "wattline priority 12 5"
        ) from None
    client = connect(args)
    one = len(words) == 1 and words[0].isdecimal() and not (args.dry_run or _has_filter(args))
    if not one:
        return change_jobs(
            client,
            args,
            words,
            "priority",
            lambda job: f"job {job['id']} has priority {priority:g}",
            priority,
        )
    job = client.patch(job_path(words[0]), {"priority": priority})
    if args.json:
        print_json(job)
    else:
        print(f"job {job['id']} has priority {job['priority']:g}")
    return 0


def _has_filter(args: argparse.Namespace) -> bool:
    return any((args.sweep, args.name, args.user, args.team, args.state, args.all))
