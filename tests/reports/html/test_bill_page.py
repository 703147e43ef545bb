from __future__ import annotations

from typing import Any

from wattline.reports.html.bill_page import render_bill

EVIL = "<img src=x onerror=alert(1)>"


def build_bill(name: str = "vision", **total: Any) -> dict[str, Any]:
    line = {
        "energy_j": 7.2e6,
        "unknown_attempts": 0,
        "gpu_hours": 2.0,
        "money": 0.5,
        "co2_kg": 0.9,
        "methods": ["simulated"],
        "jobs": 1,
    }
    job = {**line, "job": "1", "name": name, "user": name, "team": name, "state": "SUCCEEDED"}
    saving = {
        "name": "caps",
        "baseline": "the same samples without a power cap",
        "saved_j": 3.6e5,
        "error_j": 3.6e4,
        "extra_s": 9.0,
        "jobs": 1,
        "energy_j": 7.2e6,
        "not_estimated_j": 0.0,
        "reasons": {name: 1},
    }
    return {
        "team": name,
        "month": "2026-11",
        "currency": "EUR",
        "total": {**line, **total},
        "teams": [{**line, "name": name}],
        "users": [{**line, "name": name}],
        "jobs": [job],
        "savings": [saving],
        "notes": [name],
        "method": "counters",
    }


def test_the_page_begins_with_energy_money_co2_and_savings() -> None:
    text = render_bill(build_bill())
    assert "1 job used 2 kWh in 2 GPU hours, which cost 0.5 EUR and emitted 0.9 kg CO₂." in text
    assert "Caps saved 100 Wh (± 10 Wh) against the same samples without a power cap." in text
    assert len(text) < 1.5e6


def test_unknown_energy_is_stated_and_is_not_0() -> None:
    text = render_bill(build_bill(energy_j=None, money=None, co2_kg=None, unknown_attempts=2))
    assert "1 job used an unknown amount of energy" in text
    assert "The energy of 2 attempts is unknown and not part of this." in text


def test_names_of_users_cannot_write_into_the_page() -> None:
    text = render_bill(build_bill(EVIL))
    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


def test_a_month_without_jobs_has_a_page() -> None:
    bill = {**build_bill(jobs=0, energy_j=None), "jobs": [], "users": [], "teams": []}
    assert "No job ran in this month." in render_bill(bill)
