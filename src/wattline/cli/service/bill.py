"""`wattline bill`: print the energy, money and CO₂ of a month, and what was saved."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from wattline.cli.output import check_writable, notify, print_json, print_table
from wattline.cli.service.bill_csv import format_bill_csv
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_text import pluralize, sanitize, shorten
from wattline.errors import ConfigError
from wattline.units import format_joules, format_joules_alike, format_seconds

_MOST_JOBS = 20  # in a table, unless --all is given
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline bill`."""
    add = parser.add_argument
    add("--team", metavar="T", help="the bill of one team (default: of all teams)")
    add("--month", default="", metavar="M", help="a month such as 2026-11, in UTC (default: this month)")
    add("--all", action="store_true", help=f"list all jobs, not only the {_MOST_JOBS} that used most")
    add("--html", metavar="FILE", help="also write an HTML page")
    add("--csv", action="store_true", help="print the bill as CSV on stdout")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the bill."""
    if args.month and not _MONTH.fullmatch(args.month):
        raise ConfigError(f"--month is {args.month!r}, expected a month such as 2026-11")
    if args.csv and args.json:
        raise ConfigError("--csv and --json cannot be combined", "leave out one of them")
    if args.team == "":
        raise ConfigError("--team is empty, expected the name of a team", "leave it out for all teams")
    check_writable(args.html)
    path = "/bill" if args.team is None else f"/teams/{quote(args.team, safe='')}/bill"
    bill = connect(args).get(path, {"month": args.month} if args.month else {})
    if args.html:
        from wattline.reports.html.bill_page import write_bill_page

        write_bill_page(args.html, bill)
        notify(f"page: {args.html}")
    if args.json:
        print_json(bill)
    elif args.csv:
        print(format_bill_csv(bill), end="")
    else:
        _print_bill(bill, args.all)
    return 0


def _print_bill(bill: Mapping[str, Any], all_jobs: bool) -> None:
    owner = "all teams" if bill["team"] is None else f"team {sanitize(bill['team'])}"
    print(f"bill of {owner}, {bill['month']} (UTC)")
    print(_describe_total(bill))
    for level in ("team", "user"):
        lines = bill[f"{level}s"]
        if len(lines) > 1 or (level == "user" and lines):
            print()
            names = [sanitize(line["name"]) or "-" for line in lines]
            _print_lines((level,), [(name,) for name in names], lines, bill["currency"])
    if bill["jobs"]:
        jobs = sorted(bill["jobs"], key=lambda job: -(job["energy_j"] or 0.0))
        jobs = jobs if all_jobs else jobs[:_MOST_JOBS]
        print()
        about = [(job["job"], shorten(sanitize(job["name"]), 16), job["state"]) for job in jobs]
        _print_lines(("job", "name", "state"), about, jobs, bill["currency"])
        if len(jobs) < len(bill["jobs"]):
            print(f"and {pluralize(len(bill['jobs']) - len(jobs), 'more job')}: --all lists all")
    print()
    for saving in bill["savings"]:
        for line in describe_saving(saving):
            print(line)
    for note in (*bill["notes"], f"energy: {bill['method']}"):
        notify(note)


def _describe_total(bill: Mapping[str, Any]) -> str:
    total = bill["total"]
    if not total["jobs"]:
        return "no job ran in this month"
    methods = sanitize(", ".join(total["methods"]))
    energy = "energy unmetered" if total["energy_j"] is None else f"{format_joules(total['energy_j'])}"
    parts = [f"{energy} ({methods})"]
    parts += [] if total["money"] is None else [format_amount(total["money"], bill["currency"])]
    parts += [] if total["co2_kg"] is None else [f"{total['co2_kg']:.3g} kg CO₂"]
    parts += [f"{total['gpu_hours']:.3g} GPU h", pluralize(total["jobs"], "job")]
    if total["unknown_attempts"]:
        parts.append(f"{pluralize(total['unknown_attempts'], 'attempt')} of unknown energy not counted")
    return ", ".join(parts)


def format_amount(money: float, currency: str) -> str:
    """Return an amount of money: `0.21 EUR`."""
    text = f"{money:,.2f}" if abs(money) >= 1 or money == 0 else f"{money:.3g}"
    return f"{text} {sanitize(currency)}".rstrip()


def _print_lines(
    titles: Sequence[str],
    names: Sequence[Sequence[str]],
    lines: Sequence[Mapping[str, Any]],
    currency: str,
) -> None:
    """Print a table of lines that begin with *names*; columns without any value are left out."""
    known = format_joules_alike([line["energy_j"] or 0.0 for line in lines])
    columns = {
        "jobs": [str(line["jobs"]) for line in lines] if "job" not in titles else [],
        "GPU h": [f"{line['gpu_hours']:.3g}" for line in lines],
        "energy": [
            "unknown" if line["energy_j"] is None else text for line, text in zip(lines, known, strict=True)
        ],
        "money": ["-" if line["money"] is None else format_amount(line["money"], currency) for line in lines],
        "kg CO₂": ["-" if line["co2_kg"] is None else f"{line['co2_kg']:.3g}" for line in lines],
    }
    shown = {title: cells for title, cells in columns.items() if any(cell != "-" for cell in cells)}
    rows = [(*name, *cells) for name, cells in zip(names, zip(*shown.values(), strict=True), strict=True)]
    print_table((*titles, *shown), rows, right=("job", *shown))


def describe_saving(saving: Mapping[str, Any]) -> list[str]:
    """Return sentences on a saving: the joules with their error, the baseline, and what is not estimated."""
    lines = []
    if saving["saved_j"] is not None:
        error = "error unknown" if saving["error_j"] is None else f"± {format_joules(saving['error_j'])}"
        verb = "saved" if saving["saved_j"] >= 0 else "cost"
        text = f"{saving['name']} {verb} {format_joules(abs(saving['saved_j']))} ({error})"
        text += f" in {pluralize(saving['jobs'], 'job')} that used {format_joules(saving['energy_j'])}"
        if saving["extra_s"] is not None and saving["extra_s"] >= 1:
            text += f", which ran {format_seconds(saving['extra_s'])} longer"
        lines += [text, f"  against {saving['baseline']}"]
    if saving["reasons"]:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in saving["reasons"].items())
        lines.append(f"{saving['name']}: {format_joules(saving['not_estimated_j'])} not estimated: {reasons}")
    return lines or [f"{saving['name']}: none in this month"]
