"""A bill as CSV: a row for each job, user, team and saving, and for the total."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

COLUMNS = (
    *("month", "level", "name", "job_name", "user", "team", "state", "jobs", "gpu_hours", "energy_j"),
    *("energy_kwh", "method", "unknown_attempts", "money", "currency", "co2_kg"),
    *("saved_j", "saved_error_j", "baseline"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_KWH_J = 3.6e6


def format_bill_csv(bill: Mapping[str, Any]) -> str:
    """Return the CSV of a bill as `GET /bill` returns it. Unknown values are empty cells."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row in _list_rows(bill):
        writer.writerow({name: _format_cell(value) for name, value in row.items()})
    return text.getvalue()


def _list_rows(bill: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    common = {"month": bill["month"], "currency": bill["currency"]}
    for job in bill["jobs"]:
        about = {"level": "job", "name": job["job"], "job_name": job["name"]}
        yield {**common, **_list_cells(job), **about, **{key: job[key] for key in ("user", "team", "state")}}
    for level in ("user", "team"):
        for line in bill[f"{level}s"]:
            yield {**common, **_list_cells(line), "level": level, "name": line["name"], level: line["name"]}
    yield {**common, **_list_cells(bill["total"]), "level": "total", "team": bill["team"] or ""}
    for saving in bill["savings"]:
        yield {
            "month": bill["month"],
            "level": "saving",
            "name": saving["name"],
            "jobs": saving["jobs"],
            "energy_j": saving["energy_j"],
            "saved_j": saving["saved_j"],
            "saved_error_j": saving["error_j"],
            "baseline": saving["baseline"],
        }


def _list_cells(line: Mapping[str, Any]) -> dict[str, Any]:
    energy_j = line["energy_j"]
    return {
        **{
            key: line[key] for key in ("jobs", "gpu_hours", "energy_j", "unknown_attempts", "money", "co2_kg")
        },
        "energy_kwh": None if energy_j is None else energy_j / _KWH_J,
        "method": "; ".join(line["methods"]),
    }


def _format_cell(value: Any) -> Any:
    """Return a cell; a text that a spreadsheet would take for a formula is quoted by an apostrophe."""
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
