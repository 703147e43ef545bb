"""The bill on a team's page: every figure equals that of the raw tables, recomputed without our bills."""

from __future__ import annotations

import json
import os
import pwd
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from support.browser import Visitor
from support.controllers import wait_until_over
from support.http_service import serve_http
from wattline.energy.prices import Price
from wattline.jobfile import read_job
from wattline.service.billing.settings import BillSettings
from wattline.service.controller import Controller
from wattline.service.settings import ServiceSettings

pytestmark = pytest.mark.slow
OpenVisitor = Callable[..., Visitor]
PRICE, CARBON, PUE = 0.31, 410.0, 1.25
OWN_USER = pwd.getpwuid(os.getuid()).pw_name
TEAM = ".."  # a path with it would be that of the bill of all teams


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Controller]:
    bill = BillSettings(Price.flat(PRICE, PUE), Price.flat(CARBON, PUE), "EUR")
    with serve_http(folder, rate=1e6, settings=ServiceSettings(bill=bill)) as controller:
        yield controller


@pytest.fixture(scope="module")
def jobs(served: Controller) -> list[str]:
    """Run jobs of two users in the team, one of them twice, and a job of another team."""
    served.set_budgets([f"{TEAM}:200kWh/day", "900W"])
    again = "if [ $WATTLINE_RESTART_COUNT -ge 1 ]; then exit 0; fi; sleep 0.3; exit 75"
    submitted = []
    for user, text in (
        ("", f"run: [sh, -c, '{again}']\nteam: {TEAM}"),
        (OWN_USER, f"run: sleep 0.4\nteam: {TEAM}\nresources: {{gpus: 2}}"),
        ("", "run: sleep 0.3\nteam: other"),
    ):
        (row,) = served.submit(read_job(text, "job.yaml"), user, "/tmp")
        submitted.append(row.id)
    for job in submitted:
        assert wait_until_over(served, job).state == "SUCCEEDED"
    return submitted[:2]


def sum_raw(folder: Path, jobs: list[str]) -> tuple[float, float]:
    """Return joules and GPU-seconds of jobs by the events alone."""
    joules = gpu_s = 0.0
    log = sqlite3.connect(f"file:{folder / 'state.db'}?mode=ro", uri=True)
    for job in jobs:
        last_j, gpus, start_s = 0.0, 0, 0.0
        events = log.execute("SELECT at_s, kind, data FROM event WHERE job = ? ORDER BY seq", (job,))
        for at_s, kind, text in events.fetchall():
            data = json.loads(text)
            if kind == "started":
                start_s, gpus = at_s, len(data["gpus"])
            elif kind in ("stopped", "retry", "ended"):
                last_j, gpu_s = data["energy_j"], gpu_s + gpus * (at_s - start_s)
        joules += last_j
    log.close()
    return joules, gpu_s


def read_figures(row: Locator) -> list[float]:
    return [float((one.get_attribute("title") or "").split(" ")[0]) for one in row.locator(".figure").all()]


def open_bill(visitor: Visitor, team: str, month: str = "") -> Page:
    page = visitor.open(f"/team?name={team}" + (f"&month={month}" if month else ""))
    expect(page.locator("#bill")).to_have_attribute("aria-busy", "false")
    return page


def test_the_bill_has_the_sums_of_the_events(
    folder: Path, jobs: list[str], open_visitor: OpenVisitor
) -> None:
    visitor = open_visitor("viewer")
    page = open_bill(visitor, TEAM)
    rows = page.locator("#bill-lines tbody tr")
    expect(rows).to_have_count(3)
    users = {"the service": jobs[:1], OWN_USER: jobs[1:], "all": jobs}
    for row in rows.all():
        own = users.pop(row.locator("td").first.inner_text())
        joules, gpu_s = sum_raw(folder, own)
        assert read_figures(row) == pytest.approx(
            [joules, joules / 3.6e6 * PUE * PRICE, joules / 3.6e6 * PUE * CARBON / 1000, gpu_s / 3600],
            rel=1e-6,
        )
        assert row.locator("td").last.inner_text() == str(len(own))
        shown, unit = row.locator("td").nth(1).inner_text().split()
        unit_j = {"J": 1.0, "Wh": 3600.0, "kWh": 3.6e6}[unit]
        assert float(shown.replace(",", "")) * unit_j == pytest.approx(joules, rel=0.01)
        assert row.locator("td").nth(2).inner_text() == "simulated"
        assert "EUR" in row.locator("td").nth(3).inner_text()
    assert users == {}
    visitor.take_picture("team-bill")
    assert Axe().run(page).response["violations"] == []


def test_savings_and_budgets_are_those_of_the_team(jobs: list[str], open_visitor: OpenVisitor) -> None:
    page = open_bill(open_visitor("viewer", viewport={"width": 390, "height": 844}), TEAM)
    names = page.locator("#bill-savings tbody tr td:first-child").all_inner_texts()
    assert names == ["caps", "fusion", "tuning"]
    expect(page.locator("#bill-savings tbody tr").first).to_contain_text("not estimated")
    budgets = page.locator("#bill-budgets tbody tr")
    expect(budgets).to_have_count(2)
    assert read_figures(budgets.first)[0] == 200 * 3.6e6
    limit, used, left = read_figures(budgets.first)
    assert used + left == pytest.approx(limit)
    assert read_figures(budgets.last)[0] == 900
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    other = open_bill(open_visitor("viewer"), "other")
    expect(other.locator("#bill-budgets tbody tr")).to_have_count(1)


def test_a_month_without_jobs_has_no_energy_and_a_wrong_month_is_refused(
    jobs: list[str], open_visitor: OpenVisitor
) -> None:
    visitor = open_visitor("viewer")
    page = open_bill(visitor, TEAM, "2020-02")
    assert page.locator("#bill-lines tbody td").all_inner_texts() == ["all", "–", "–", "–", "–", "0", "0"]
    page = open_bill(visitor, TEAM, "2026-13")
    expect(page.locator("#bill-loading")).to_contain_text("month is '2026-13'")
    visitor.messages.clear()  # the browser notes the answer 409
