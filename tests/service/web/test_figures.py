"""Every figure on a page equals the raw log's: recomputed here from the tables, without our reports."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page

from support.browser import Visitor
from support.controllers import submit_text, wait_until, wait_until_over, wait_until_running
from wattline.batch_size.bandit import TuningTask
from wattline.batch_size.history import RunHistory
from wattline.service.controller import Controller

pytestmark = pytest.mark.slow
OpenVisitor = Callable[..., Visitor]


@pytest.fixture(scope="module")
def log(folder: Path, served: Controller) -> Iterator[sqlite3.Connection]:
    """Open the service's file as it is."""
    connection = sqlite3.connect(f"file:{folder / 'state.db'}?mode=ro", uri=True)
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def sweep(served: Controller) -> list[str]:
    """Run a sweep that reports a metric, a job that is requeued, and one that runs on."""
    code = (
        "import json, os, sys, time; time.sleep(0.3);"
        "print(json.dumps(dict(at=time.time(), event='report', metrics=dict(loss=float(sys.argv[1]) / 3))),"
        " file=open(os.environ['WATTLINE_EVENTS'], 'a'))"
    )
    rows = submit_text(
        served, f'run: [python3, -c, "{code}", "${{x}}"]\nname: fig\nteam: figures\nmatrix: {{x: [1, 2]}}'
    )
    again = "if [ $WATTLINE_RESTART_COUNT -ge 1 ]; then exit 0; fi; sleep 0.5; exit 75"
    rows += submit_text(served, f"run: [sh, -c, '{again}']\nname: twice\nteam: figures")
    for row in rows:
        wait_until_over(served, row.id)
    (runs,) = submit_text(served, "run: sleep 600\nname: goes-on\nteam: figures\nresources: {gpus: 2}")
    wait_until_running(served, runs.id)
    submit_text(served, "run: sleep 600\nname: waits\nteam: figures\nresources: {gpus: 4}")
    return [row.id for row in rows]


def events_of(log: sqlite3.Connection, job: str) -> list[tuple[float, str, dict[str, Any]]]:
    found = log.execute("SELECT at_s, kind, data FROM event WHERE job = ? ORDER BY seq", (job,))
    return [(at_s, kind, json.loads(data)) for at_s, kind, data in found]


def read_joules(place: Locator) -> list[float]:
    """Return the exact joules behind the rounded ones that are shown."""
    titles = [one.get_attribute("title") or "" for one in place.locator(".figure").all()]
    return [float(title.split(" J, ")[0]) for title in titles]


def read_energy(text: str) -> float:
    """Return a shown energy in joules."""
    found = re.match(r"([\d.,]+) (J|Wh|kWh)", text)
    assert found, text
    return float(found[1].replace(",", "")) * {"J": 1.0, "Wh": 3600.0, "kWh": 3.6e6}[found[2]]


def read_seconds(text: str) -> float:
    """Return a shown duration in seconds."""
    found = re.match(r"([\d.]+) (s|min|h|d)", text)
    assert found, text
    return float(found[1]) * {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}[found[2]]


def test_the_overview_shows_the_last_sample(
    log: sqlite3.Connection, sweep: list[str], served: Controller, open_visitor: OpenVisitor
) -> None:
    visitor = open_visitor("viewer")

    def compare() -> bool:
        page = visitor.open("/")
        shown = [page.inner_text(f"#{name}") for name in ("power-now", "gpus-busy", "jobs-waiting")]
        samples = log.execute(
            "SELECT power_w, jobs FROM power_sample WHERE at_s = (SELECT max(at_s) FROM power_sample)"
        ).fetchall()
        held = {
            gpu
            for (data,) in log.execute(
                "SELECT (SELECT data FROM event AS one WHERE one.job = e.job AND one.kind = 'started'"
                " ORDER BY seq DESC LIMIT 1) FROM event AS e GROUP BY job"
                " HAVING sum(kind = 'started') > sum(kind IN ('stopped', 'retry', 'ended'))"
            )
            for gpu in json.loads(data)["gpus"]
        }
        kinds = log.execute("SELECT job, kind FROM event WHERE job IS NOT NULL ORDER BY seq")
        last = {job: kind for job, kind in kinds if kind not in ("retuned", "notice")}
        waiting = sum(kind in ("accepted", "retry", "stopped") for kind in last.values())
        return shown == [f"{sum(watts for watts, _ in samples):,.0f} W", str(len(held)), str(waiting)]

    wait_until(compare, "the overview differs from the log")


def test_a_job_shows_the_joules_of_its_events(
    log: sqlite3.Connection, sweep: list[str], open_visitor: OpenVisitor
) -> None:
    visitor = open_visitor("viewer")
    for job in sweep:
        page = visitor.open(f"/jobs/{job}")
        ends = [
            (at_s, data) for at_s, kind, data in events_of(log, job) if kind in ("retry", "stopped", "ended")
        ]
        totals = [data["energy_j"] for _, data in ends]
        assert read_joules(page.locator("#energy")) == [totals[-1]]
        table = page.locator("section", has_text="Attempts").locator("tbody")
        assert read_joules(table) == pytest.approx(
            [b - a for a, b in zip([0, *totals], totals, strict=False)]
        )
        starts = [at_s for at_s, kind, _ in events_of(log, job) if kind == "started"]
        shown = [one.get_attribute("datetime") for one in table.locator("td:nth-child(2) time").all()]
        assert shown == [datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") for at in starts]
        caps = [data["cap_w"] for _, kind, data in events_of(log, job) if kind == "started"]
        rows = table.locator("td:nth-child(6)").all_inner_texts()
        for cap_w, text in zip(caps, rows, strict=True):
            assert (f"{cap_w:,.0f} W" if cap_w else "none") in text
    assert len(totals) == 2  # the last job was started twice


def test_a_sweep_shows_values_metrics_and_joules_of_the_log(
    log: sqlite3.Connection, sweep: list[str], open_visitor: OpenVisitor
) -> None:
    page = open_visitor("viewer").open(f"/sweeps/{sweep[0]}")
    rows = page.locator(".members tbody tr")
    for row, job in zip(rows.all(), sweep[:2], strict=True):
        events = {kind: data for _, kind, data in events_of(log, job)}
        cells = row.locator("td").all_inner_texts()
        assert float(cells[2]) == events["accepted"]["matrix"]["x"]
        assert float(cells[3]) == pytest.approx(events["ended"]["metrics"]["loss"], rel=1e-5)
        assert read_joules(row) == [events["ended"]["energy_j"]]


def test_a_team_and_the_list_show_sums_of_the_log(
    log: sqlite3.Connection, sweep: list[str], open_visitor: OpenVisitor
) -> None:
    page = open_visitor("viewer").open("/team?name=figures")
    joules = sum(
        [data["energy_j"] for _, kind, data in events_of(log, job) if kind == "ended"][-1] for job in sweep
    )
    assert read_energy(page.inner_text("#team-energy")) == pytest.approx(joules, rel=0.01)
    page.goto(page.url.replace("/team?name=figures", "/jobs?team=figures&state=SUCCEEDED"))
    assert page.inner_text("#total") == "3"
    assert sum(read_joules(page.locator("#jobs tbody"))) == pytest.approx(joules)


def read_chart(page: Page, title: str) -> dict[str, Any]:
    chart = page.locator("[data-chart]", has=page.locator("figcaption", has_text=title))
    return json.loads(chart.get_attribute("data-chart") or "{}")  # type: ignore[no-any-return]


def test_the_curves_of_a_job_have_the_reports_of_its_events(
    log: sqlite3.Connection, sweep: list[str], folder: Path, open_visitor: OpenVisitor
) -> None:
    page = open_visitor("viewer").open(f"/jobs/{sweep[0]}")
    lines = (folder / "jobs" / sweep[0] / "attempts" / "1" / "events.jsonl").read_text().splitlines()
    reported = [json.loads(line)["metrics"]["loss"] for line in lines if '"report"' in line]
    shown = read_chart(page, "loss")["points"]
    assert [value for _, value in shown] == pytest.approx(reported, rel=1e-5)
    metrics = page.locator(".metric", has_text="loss").inner_text()
    assert float(metrics.split()[1]) == pytest.approx(reported[-1], rel=1e-5)


def test_the_gpus_show_the_power_and_the_jobs_of_the_last_sample(
    log: sqlite3.Connection, sweep: list[str], open_visitor: OpenVisitor
) -> None:
    visitor = open_visitor("viewer")

    def compare() -> bool:
        page = visitor.open("/")
        cells = page.locator(".gpu")
        shown = [
            (cell.locator(".index").inner_text(), cell.locator(".watts").inner_text().split(" W")[0])
            for cell in cells.all()
        ]
        found = log.execute(
            "SELECT gpu, power_w FROM power_sample WHERE at_s = (SELECT max(at_s) FROM power_sample)"
            " ORDER BY gpu"
        )
        return shown == [(str(gpu), f"{watts:,.0f}") for gpu, watts in found]

    wait_until(compare, "the GPUs differ from the last sample")


def test_a_group_shows_the_means_of_its_recorded_runs(
    served: Controller, folder: Path, open_visitor: OpenVisitor
) -> None:
    with RunHistory.open(folder / "memory.db") as history:
        history.store_task("nightly", TuningTask((16, 32), 16, 10))
        for batch, seconds, joules, epochs in (
            (16, 100.0, 9000.0, 4),
            (32, 50.0, 7000.0, 6),
            (16, 120.0, 9600.0, 5),
        ):
            history.add_run(
                "nightly", "a100", batch=batch, reached=True, seconds=seconds, joules=joules, epochs=epochs,
                method="simulated",
            )  # fmt: skip
    page = open_visitor("viewer").open("/group?name=nightly")
    with sqlite3.connect(f"file:{folder / 'memory.db'}?mode=ro", uri=True) as memory:
        runs = memory.execute(
            "SELECT batch, seconds, joules, epochs FROM run WHERE grp = 'nightly' ORDER BY id"
        ).fetchall()
    page.click("summary:has-text('Runs')")
    rows = page.locator("details tbody tr").all()
    assert len(rows) == len(runs)
    for row, (batch, seconds, joules, epochs) in zip(rows, runs, strict=True):
        cells = row.locator("td").all_inner_texts()
        assert (int(cells[0]), int(cells[4])) == (batch, epochs)
        assert read_seconds(cells[2]) == pytest.approx(seconds, rel=0.01)
        assert read_energy(cells[3]) == pytest.approx(joules, rel=0.01)
    for row in page.locator("table").first.locator("tbody tr").all():
        cells = row.locator("td").all_inner_texts()
        own = [run for run in runs if run[0] == int(cells[0].split()[0])]
        assert int(cells[1]) == len(own)
        assert float(cells[3]) == pytest.approx(sum(run[3] for run in own) / len(own), abs=0.051)


def test_the_chart_of_power_has_the_samples_of_the_log(
    log: sqlite3.Connection, sweep: list[str], open_visitor: OpenVisitor
) -> None:
    page = open_visitor("viewer").open("/")
    page.wait_for_selector("[data-chart]")
    data = json.loads(page.get_attribute("[data-chart]", "data-chart") or "{}")
    sums = {}
    for at_s, watts in log.execute("SELECT at_s, sum(power_w) FROM power_sample GROUP BY at_s"):
        sums.setdefault(at_s // 10 * 10, []).append(watts)
    for at_s, value in data["points"]:
        assert value == pytest.approx(sum(sums[at_s]) / len(sums[at_s]), rel=1e-5)
