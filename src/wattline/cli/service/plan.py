"""`wattline plan`: what would happen to a job that is submitted now?"""

from __future__ import annotations

import argparse
from typing import Any

from wattline.cli.output import show_json, tell
from wattline.cli.service.connect import reach
from wattline.cli.service.job_arguments import Request, read_request
from wattline.cli.service.job_text import clean, clock, count, joules
from wattline.grid import grid
from wattline.service.client import Client

INFEASIBLE = 4


def run(args: argparse.Namespace) -> int:
    """Show a plan; nothing is submitted."""
    request = read_request(args)
    return show_plan(reach(args), request, args.json)


def show_plan(client: Client, request: Request, in_json: bool) -> int:
    """Ask for a plan and print it; the exit code says whether there is one."""
    said = client.post("/plan", request.document)
    if in_json:
        show_json(said)
    else:
        _print(said)
    return 0 if said["feasible"] else INFEASIBLE


def _print(said: dict[str, Any]) -> None:
    rows = [(said["expected"], "as asked"), *((other, "") for other in said["alternatives"])]
    found = [_row(what, note) for what, note in rows if what is not None]
    if found:
        head = ("gpus", "kind", "cap", "starts", "ends", "energy", "")
        print("\n".join(grid([head, *found], lambda column: ">" if column in (0, 2) else "<")))
    if not said["feasible"]:
        tell("it could never run here")
    for note in said["notes"]:
        tell(clean(note))
    tell(f"{count(said['jobs'], 'job')}, and nothing was submitted")


def _row(what: dict[str, Any], note: str) -> tuple[str, ...]:
    return (
        str(what["gpus"]),
        what["kind"] or "-",
        f"{what['cap_w']:g} W" if what["cap_w"] else "-",
        clock(what["starts_s"]) if what["starts_s"] is not None else "not foreseen",
        clock(what["ends_s"]),
        "-" if what["energy_j"] is None else joules(what["energy_j"], "predicted"),
        note,
    )
