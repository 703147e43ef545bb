"""Submit form, sweeps, groups, teams and what-if studies in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from support.browser import Visitor
from support.controllers import submit_text, wait_until_over
from wattline.batch_size.bandit import TuningTask
from wattline.batch_size.history import RunHistory
from wattline.service.controller import Controller

pytestmark = pytest.mark.slow
OpenVisitor = Callable[..., Visitor]
MARKUP = "<img src=x onerror=pwned=1>{{7+7}}"

REPORT = (
    "python3 -c 'import json, os, time;"
    ' print(json.dumps(dict(at=time.time(), event="report", metrics=dict(loss=(float("${lr}") - 0.01) ** 2)))'
    ', file=open(os.environ["WATTLINE_EVENTS"], "a"))\''
)


def test_a_job_is_planned_submitted_and_runs(served: Controller, open_visitor: OpenVisitor) -> None:
    before = served.store.last_job_number()
    page = open_visitor("user").open("/submit")
    page.fill("[name=run]", "echo from the form")
    page.fill("[name=name]", "form-job")
    page.fill("[name=gpus]", "2")
    page.fill("[name=time]", "1h")
    page.click("#plan")
    expect(page.locator("#plan-rows tr").first).to_contain_text("with 2 GPUs")
    assert served.store.last_job_number() == before
    page.click("#submit-job")
    page.wait_for_url("**/jobs/*")
    expect(page.locator(".state").first).to_contain_text("SUCCEEDED")
    expect(page.locator("#log")).to_contain_text("from the form")
    (job,) = [row for row in served.store.jobs() if row.name == "form-job"]
    assert (job.submission["columns"]["gpus"], job.submission["spec"]["time_limit_s"]) == (2, 3600.0)


def test_a_job_of_the_form_runs_in_its_folder_and_the_plan_has_units(
    served: Controller, open_visitor: OpenVisitor, tmp_path: Path
) -> None:
    page = open_visitor("user").open("/submit")
    page.fill("[name=run]", "pwd")
    page.fill("[name=workdir]", str(tmp_path))
    page.fill("[name=model]", "resnet50")
    page.fill("[name=time]", "1m")
    page.click("#plan")
    first = page.locator("#plan-rows tr").first
    expect(first.locator("td").nth(1)).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d$"))
    expect(first.locator("td").last).to_have_text(re.compile(r"^[\d.,]+ (J|Wh|kWh) "))
    expect(page.locator("#plan-text")).to_contain_text("Nothing is submitted yet")
    page.click("#submit-job")
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#log")).to_contain_text(str(tmp_path))


def test_a_recurring_group_without_records_explains_why_and_links_to_its_jobs(
    served: Controller, open_visitor: OpenVisitor
) -> None:
    text = "run: 'true'\nname: again\nmodel: bert\nbatch_size: 32\n"
    text += "recurring: {group: weekly, batch_sizes: [16, 32]}\n"
    jobs = [submit_text(served, text)[0] for _ in range(2)]
    for job in jobs:
        wait_until_over(served, job.id)
    page = open_visitor("viewer").open(f"/jobs/{jobs[0].id}")
    page.click("dd a:has-text('weekly')")
    expect(page.locator("main")).to_contain_text("No run is recorded yet. A run counts when it succeeds")
    links = page.locator("tbody td:first-child")
    expect(links).to_have_text([f"#{job.id} again" for job in reversed(jobs)])
    expect(page.locator("header nav a[aria-current]")).to_have_text("Groups")


def test_a_plan_that_never_runs_cannot_be_submitted(served: Controller, open_visitor: OpenVisitor) -> None:
    visitor = open_visitor("user")
    page = visitor.open("/submit")
    page.fill("[name=run]", "true")
    page.fill("[name=gpus]", "64")
    page.click("#plan")
    expect(page.locator("#plan-text")).to_contain_text("can never run")
    assert page.locator("#submit-job").is_disabled()
    page.fill("[name=time]", "soon")
    page.click("#plan")
    expect(page.locator("#message")).to_contain_text("resources.time")
    visitor.messages.clear()  # the browser notes the answer 422


def test_a_sweep_from_yaml_is_compared_and_cancelled(served: Controller, open_visitor: OpenVisitor) -> None:
    page = open_visitor("user").open("/submit")
    page.click("#use-yaml")
    page.fill("#yaml", "run: sleep 600${n}\nname: tall\nmatrix: {n: [1, 2, 3]}\nresources: {gpus: 2}\n")
    page.click("#plan")
    expect(page.locator("#submit-job")).to_have_text("Submit 3 jobs")
    page.click("#submit-job")
    page.wait_for_url("**/sweeps/*")
    expect(page.locator("main")).to_contain_text("0 of 3")
    page.click("#cancel-sweep")
    page.click("#confirm-yes")
    expect(page.locator("main")).to_contain_text("3 of 3")
    assert {row.state for row in served.store.jobs() if row.name == "tall"} == {"CANCELLED"}


def test_a_sweep_is_sorted_by_any_metric(served: Controller, open_visitor: OpenVisitor) -> None:
    rows = submit_text(served, f"run: |\n  {REPORT}\nname: lr-sweep\nmatrix: {{lr: [0.1, 0.001, 0.01]}}\n")
    for row in rows:
        assert wait_until_over(served, row.id).state == "SUCCEEDED"
    page = open_visitor("viewer").open(f"/sweeps/{rows[0].id}?sort=loss")
    order = page.locator(".members tbody tr td:nth-child(3)").all_inner_texts()
    assert order == ["0.01", "0.001", "0.1"]
    expect(page.locator(".members tr.best")).to_contain_text("0.01")
    page.click("th a:has-text('lr')")
    assert page.locator(".members tbody tr td:nth-child(3)").all_inner_texts() == ["0.001", "0.01", "0.1"]
    dark = page.evaluate(
        "() => { const c = document.getElementById('parallel');"
        " return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0); }"
    )
    assert dark
    assert page.locator("#cancel-sweep").count() == 0


def test_a_recurring_group_shows_what_it_tried(
    served: Controller, open_visitor: OpenVisitor, folder: Path
) -> None:
    with RunHistory.open(folder / "memory.db") as history:
        history.store_task("nightly & <b>", TuningTask((16, 32, 64), 32, 10))
        for batch, seconds, joules in ((32, 100.0, 9000.0), (64, 80.0, 8000.0), (32, 110.0, 9500.0)):
            history.add_run(
                "nightly & <b>", "a100", batch=batch, reached=True, seconds=seconds, joules=joules, epochs=5,
                method="simulated",
            )  # fmt: skip
    page = open_visitor("viewer").open("/groups")
    page.click("text=nightly & <b>")
    rows = page.locator("table").first.locator("tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["16", "32", "64"]
    expect(page.locator("main")).to_contain_text("3 runs, energy simulated")
    expect(page.locator("tr.best").first).to_contain_text("64")


def test_teams_show_their_energy(served: Controller, open_visitor: OpenVisitor) -> None:
    (job,) = submit_text(served, "run: 'true'\nteam: vision & more")
    row = wait_until_over(served, job.id)
    page = open_visitor("viewer").open("/teams")
    page.click("text=vision & more")
    assert row.energy_j is not None
    expect(page.locator("#team-energy")).to_contain_text(f"{row.energy_j:.3g}"[:4].rstrip("."))
    page.click(".card a")
    expect(page.locator("#total")).to_have_text("1")


def upload(page: Page, trace: Path, user: str, policies: list[str], cluster: str) -> None:
    """Start a study of a trace by the form, and open its page."""
    page.check("[name=source][value=upload]")
    page.set_input_files("[name=trace]", trace)
    page.fill("[name=cluster]", cluster)
    page.fill("[name=user]", user)
    page.select_option("[name=policy]", policies)
    page.click("#whatif button")
    page.wait_for_url("**/whatif/*")


def test_a_trace_is_uploaded_and_simulated_as_a_plain_queue_computes(
    open_visitor: OpenVisitor, tmp_path: Path
) -> None:
    jobs = [(60.0 * n, 120.0 + 7.0 * (n % 5)) for n in range(20)]  # submission and duration, of one GPU each
    lines = [f"{n},{submit},1,{lasts},{MARKUP},{MARKUP}" for n, (submit, lasts) in enumerate(jobs)]
    trace = tmp_path / f"{MARKUP}.csv"
    trace.write_text("\n".join(["id,submit_s,gpus,duration_s,team,user", *lines]) + "\n")
    page = open_visitor("user").open("/whatif")
    upload(page, trace, MARKUP, ["fifo", "srtf"], "1xa100:1")
    expect(page.locator("h2", has_text="Assumptions")).to_be_visible(timeout=300_000)
    expect(page.locator("h1")).to_contain_text(f"{MARKUP}.csv")
    expect(page.locator("main")).to_contain_text("Your jobs")
    expect(page.locator("table", has_text="completion").last).to_contain_text(MARKUP)
    assert page.locator("img").count() == 0
    assert page.evaluate("typeof pwned") == "undefined"
    rows = page.locator("table", has_text="mean wait").locator("tbody tr").all()
    cells = {
        row.locator("td").first.inner_text().split()[0]: row.locator("td").all_inner_texts() for row in rows
    }
    now_s, waits_s, completions_s = 0.0, [], []
    for submit_s, lasts_s in jobs:  # first in, first out, on one GPU
        start_s = max(now_s, submit_s)
        now_s = start_s + lasts_s
        waits_s.append(start_s - submit_s)
        completions_s.append(now_s - submit_s)
    assert parse_duration(cells["fifo"][3]) == pytest.approx(sum(completions_s) / len(jobs), rel=0.01)
    assert parse_duration(cells["fifo"][5]) == pytest.approx(sum(waits_s) / len(jobs), rel=0.01)
    assert (cells["fifo"][2].split()[0], cells["fifo"][6]) == ("1.000", "0")
    assert "srtf" in cells


def parse_duration(text: str) -> float:
    """Return a duration of a page in seconds."""
    number, unit = text.split()
    return float(number) * {"s": 1.0, "min": 60.0, "h": 3600.0}[unit]


def test_a_broken_trace_is_refused_with_its_line(open_visitor: OpenVisitor, tmp_path: Path) -> None:
    trace = tmp_path / "broken.csv"
    trace.write_text(f"id,submit_s,gpus,duration_s,{MARKUP}\n1,0,1,60,x\n")
    page = open_visitor("user").open("/whatif")
    upload(page, trace, "", ["fifo"], "1xa100:1")
    failed = page.locator(".banner.bad")
    expect(failed).to_contain_text("broken.csv:1", timeout=300_000)
    expect(failed).to_contain_text(f"unknown column '{MARKUP}'")
    assert page.locator("img").count() == 0
