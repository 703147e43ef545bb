"""`wattline plan`: show when and where a job would run, without submitting it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from wattline.cli.output import notify, print_json, print_table
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_arguments import JobDocument, add_job_arguments, read_job_document
from wattline.cli.service.job_text import format_clock, format_metered, pluralize, sanitize
from wattline.service.client import Client

if TYPE_CHECKING:
    from wattline.cli.main import CommandParser

INFEASIBLE = 4
_COLUMNS = ("gpus", "kind", "cap", "starts", "ends", "energy", "")


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `wattline plan`."""
    add_job_arguments(parser)
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print a plan without submitting the job."""
    document = read_job_document(args)
    return print_plan(connect(args), document, args.json)


def print_plan(client: Client, document: JobDocument, in_json: bool) -> int:
    """Request a plan and print it; return the exit code, `INFEASIBLE` if the job can never run."""
    plan = client.post("/plan", document.document)
    if in_json:
        print_json(plan)
    else:
        _print_text(plan)
    return 0 if plan["feasible"] else INFEASIBLE


def _print_text(plan: dict[str, Any]) -> None:
    configurations = [(plan["expected"], "as requested"), *((other, "") for other in plan["alternatives"])]
    rows = [_build_row(what, note) for what, note in configurations if what is not None]
    if rows:
        print_table(_COLUMNS, rows, right=("gpus", "cap"))
    if not plan["feasible"]:
        notify("this job can never run on this cluster")
    for note in plan["notes"]:
        notify(sanitize(note))
    notify(f"{pluralize(plan['jobs'], 'job')} planned; nothing was submitted")


def _build_row(configuration: dict[str, Any], note: str) -> tuple[str, ...]:
    start_s, energy_j = configuration["starts_s"], configuration["energy_j"]
    return (
        str(configuration["gpus"]),
        configuration["kind"] or "-",
        f"{configuration['cap_w']:g} W" if configuration["cap_w"] else "-",
        format_clock(start_s) if start_s is not None else "unknown",
        format_clock(configuration["ends_s"]),
        "-" if energy_j is None else format_metered(energy_j, "predicted"),
        note,
    )
