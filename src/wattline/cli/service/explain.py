"""`wattline explain JOB`: explain the state of a job and what would change it."""

from __future__ import annotations

import argparse
from typing import Any

from wattline.cli.output import print_json
from wattline.cli.service.connect import add_connection_arguments, add_job_id_argument, connect, job_path
from wattline.cli.service.job_text import format_clock, sanitize


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline explain`."""
    add_job_id_argument(parser)
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the explanation of one job."""
    explanation = connect(args).get(job_path(args.job, "explain"))
    if args.json:
        print_json(explanation)
    else:
        print("\n".join(_format_lines(explanation)))
    return 0


def _format_lines(explanation: dict[str, Any]) -> list[str]:
    job, state = explanation["job"], explanation["state"]
    lines = [f"job {job} is {state}: {sanitize(explanation['reason'])}".rstrip(": ")]
    lines += [f"  {sanitize(fact)}" for fact in explanation["evidence"]]
    if explanation["expected"]:
        lines.append(f"expected {sanitize(explanation['expected']['text'])}")
    if explanation["changes"]:
        lines.append("what would change that:")
        lines += [f"  {sanitize(change['text'])}" for change in explanation["changes"]]
    if explanation["decided_s"] is not None:
        lines.append(f"(decided at {format_clock(explanation['decided_s'])}, epoch {explanation['epoch']})")
    return lines
