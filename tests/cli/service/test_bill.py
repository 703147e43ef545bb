from __future__ import annotations

import csv
import io
import json

import pytest

from support.command_line import run_command
from wattline.cli.service.bill import describe_saving
from wattline.cli.service.bill_csv import COLUMNS, format_bill_csv

Capsys = pytest.CaptureFixture[str]
LINE = {
    "energy_j": 7.2e6,
    "unknown_attempts": 0,
    "gpu_hours": 2.0,
    "money": 0.5,
    "co2_kg": 0.9,
    "methods": ["simulated"],
    "jobs": 1,
}
SAVING = {
    "name": "caps",
    "baseline": "the same samples without a power cap",
    "saved_j": 3.6e5,
    "error_j": 3.6e4,
    "extra_s": 90.0,
    "jobs": 1,
    "energy_j": 7.2e6,
    "not_estimated_j": 0.0,
    "reasons": {},
}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_a_name_is_never_a_formula_in_a_spreadsheet(text: str) -> None:
    job = {**LINE, "job": "1", "name": text, "user": text, "team": text, "state": "FAILED"}
    bill = {
        "month": "2026-11",
        "currency": text,
        "team": text,
        "total": LINE,
        "jobs": [job],
        "savings": [SAVING],
        "users": [{**LINE, "name": text}],
        "teams": [{**LINE, "name": text}],
    }
    rows = list(csv.DictReader(io.StringIO(format_bill_csv(bill), newline="")))
    assert [row["level"] for row in rows] == ["job", "user", "team", "total", "saving"]
    cells = [cell for row in rows for cell in row.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t"))]
    assert rows[0]["job_name"] == f"'{text}"
    assert float(rows[0]["energy_kwh"]) == 2.0
    assert tuple(rows[0]) == COLUMNS


def test_a_loss_is_a_number_in_csv_not_a_quoted_text() -> None:
    bill = {
        "month": "2026-11",
        "currency": "",
        "team": None,
        "total": LINE,
        "jobs": [],
        "users": [],
        "teams": [],
        "savings": [{**SAVING, "saved_j": -5.0}],
    }
    rows = list(csv.DictReader(io.StringIO(format_bill_csv(bill))))
    assert float(rows[-1]["saved_j"]) == -5.0


def test_a_saving_is_described_with_its_error_and_baseline() -> None:
    assert describe_saving(SAVING) == [
        "caps saved 100 Wh (± 10 Wh) in 1 job that used 2 kWh, which ran 90 s longer",
        "  against the same samples without a power cap",
    ]
    unknown = {**SAVING, "saved_j": None, "not_estimated_j": 7.2e3, "reasons": {"the job names no model": 2}}
    assert describe_saving(unknown) == ["caps: 2 Wh not estimated: 2 x the job names no model"]
    assert describe_saving({**SAVING, "saved_j": None}) == ["caps: none in this month"]


def test_wrong_arguments_are_refused_before_a_service_is_asked(capsys: Capsys) -> None:
    for words, message in (
        (["--month", "2026-13"], "--month is '2026-13', expected a month such as 2026-11"),
        (["--csv", "--json"], "--csv and --json cannot be combined"),
        (["--team", ""], "--team is empty"),
    ):
        code, out, err = run_command(capsys, "bill", *words)
        assert code == 2
        assert message in (err or json.loads(out)["error"]["message"])
