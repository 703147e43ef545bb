"""`wattline plan`: show when and where a job would run, without submitting it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from wattline.cli.main import INFEASIBLE
from wattline.cli.output import describe_error, notify, print_error, print_json, print_table
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_arguments import JobDocument, add_job_arguments, read_job_document
from wattline.cli.service.job_text import format_clock, pluralize, sanitize
from wattline.errors import Unsatisfiable
from wattline.service.client import Client
from wattline.units import format_joules_alike

if TYPE_CHECKING:
    from wattline.cli.main import CommandParser

_COLUMNS = ("requests", "starts on", "cap", "starts", "ends", "energy", "")


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
    error = None if plan["feasible"] else _build_error(plan, document)
    if in_json:
        print_json(plan if error is None else {**plan, "error": describe_error(error)})
    elif error is not None:
        print_error(error, False)
    else:
        _print_text(plan)
    return 0 if error is None else INFEASIBLE


def _build_error(plan: dict[str, Any], document: JobDocument) -> Unsatisfiable:
    reason = sanitize(plan["reason"]) or "it does not start even when all other jobs have ended"
    if not plan["field"]:
        return Unsatisfiable(f"this job can never run here: {reason}", "wattline budget show")
    place = document.locate(plan["field"])
    return Unsatisfiable(f"{place}: {reason}" if place else reason, field=plan["field"])


def _print_text(plan: dict[str, Any]) -> None:
    configurations = [(plan["expected"], "as requested"), *((other, "") for other in plan["alternatives"])]
    known = [(what, note) for what, note in configurations if what is not None]
    energies = iter(format_joules_alike([what["energy_j"] for what, _ in known if what["energy_j"]]))
    rows = [_build_row(what, note, next(energies) if what["energy_j"] else "-") for what, note in known]
    if rows:
        print_table(_COLUMNS, rows, right=("cap", "energy"))
    for text in dict.fromkeys(_describe_energy(what) for what, _ in configurations if what is not None):
        if text:
            notify(text)
    for note in plan["notes"]:
        notify(sanitize(note))
    notify(f"{pluralize(plan['jobs'], 'job')} planned; nothing was submitted")


def _describe_energy(configuration: dict[str, Any]) -> str:
    if not configuration["energy_method"]:
        return ""
    error = configuration["energy_error"]
    mean_error = "error unknown" if error is None else f"mean error {100 * error:.0f} %"
    return f"energy: {sanitize(configuration['energy_method'])} ({mean_error})"


def _build_row(configuration: dict[str, Any], note: str, energy: str) -> tuple[str, ...]:
    start_s = configuration["starts_s"]
    unknown = "never" if configuration["never_starts"] else "unknown"
    return (
        pluralize(configuration["gpus_asked"], "GPU"),
        "-" if start_s is None else f"{configuration['gpus']} {configuration['kind']}",
        f"{configuration['cap_w']:g} W" if configuration["cap_w"] else "-",
        format_clock(start_s) if start_s is not None else unknown,
        format_clock(configuration["ends_s"]),
        energy,
        note or sanitize(configuration["reason"]),
    )
