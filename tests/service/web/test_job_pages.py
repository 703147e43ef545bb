"""Jobs in a real browser: the overview, the list, a job's page, its log, and its cancellation."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser, expect

from support.browser import Visitor, open_window
from support.controllers import submit_text, wait_until, wait_until_over, wait_until_running
from wattline.backend.engine.folder_layout import log_file
from wattline.service.controller import Controller

pytestmark = pytest.mark.slow
OpenVisitor = Callable[..., Visitor]

BAR = (
    'run: [sh, -c, \'i=1; while [ $i -lt 9000 ]; do printf "\\repoch 1 step %d" $i; i=$((i+1)); sleep 0.05;'
    " done']\nname: bar"
)


def test_a_running_job_is_seen_explained_and_cancelled(served: Controller, open_visitor: OpenVisitor) -> None:
    (running,) = submit_text(served, "run: sleep 600\nname: long-run\nresources: {gpus: 4}")
    wait_until_running(served, running.id)
    (waiting,) = submit_text(served, "run: sleep 600\nname: short-wait\nresources: {gpus: 2}")
    visitor = open_visitor("operator")
    page = visitor.open("/")
    expect(page.locator("#gpus-busy")).to_have_text("4")
    row = page.locator("tr", has_text="short-wait")
    expect(row).to_contain_text("fewer GPUs are free")
    row.click()
    expect(page.locator("#sentence")).to_contain_text("fewer GPUs are free")
    expect(page.locator("#explanation")).to_contain_text("2 GPUs; 0 of 4 are free")
    page.goto(f"{visitor.url}/jobs/{running.id}")
    page.click("text=Cancel >> visible=true")
    expect(page.locator("#confirm-text")).to_have_text(f"Cancel job {running.id}?")
    page.click("#confirm-yes")
    expect(page.locator(".state").first).to_contain_text("CANCELLED")
    wait_until_running(served, waiting.id)
    page.goto(f"{visitor.url}/jobs/{waiting.id}")
    expect(page.locator(".state").first).to_contain_text("RUNNING")
    page.goto(f"{visitor.url}/jobs?text=short-wait")
    page.check(f'.pick-one[value="{waiting.id}"]')
    page.click("#cancel-picked")
    page.click("#confirm-yes")
    expect(page.locator("#message")).to_have_text("1 cancelled")
    wait_until_over(served, waiting.id)
    cancels = [event for event in served.store.events(limit=10_000) if event.kind == "cancel"]
    assert [event.data["by"] for event in cancels[-2:]] == ["a-operator"] * 2


def test_the_explanation_follows_a_job_that_starts_and_ends(
    served: Controller, open_visitor: OpenVisitor
) -> None:
    (first,) = submit_text(served, "run: sleep 600\nname: in-the-way\nresources: {gpus: 4}")
    wait_until_running(served, first.id)
    (job,) = submit_text(served, "run: sleep 600\nname: starts-later\nresources: {gpus: 4}")
    page = open_visitor("viewer").open(f"/jobs/{job.id}")
    expect(page.locator("#explanation h2")).to_have_text("Why it waits")
    served.cancel(first.id)
    expect(page.locator("#explanation h2")).to_have_text("What is expected")
    expect(page.locator("#sentence")).to_contain_text("Running since")
    served.cancel(job.id)
    expect(page.locator(".state").first).to_contain_text("CANCELLED")
    expect(page.locator("#explanation")).to_have_count(0)


def test_waiting_jobs_are_listed_in_the_order_in_which_they_will_start(
    served: Controller, open_visitor: OpenVisitor
) -> None:
    (first,) = submit_text(served, "run: sleep 600\nname: holds-all\nresources: {gpus: 4}")
    wait_until_running(served, first.id)
    (low,) = submit_text(served, "run: sleep 600\nname: came-first\nresources: {gpus: 2}")
    (high,) = submit_text(served, "run: sleep 600\nname: is-urgent\npriority: 9\nresources: {gpus: 2}")
    page = open_visitor("viewer").open("/")
    names = page.locator("table.queue td:first-child")
    expect(names).to_have_text([f"#{high.id} is-urgent", f"#{low.id} came-first"])
    expect(names.locator("xpath=..").first).to_contain_text("First in the queue")
    for job in (high, low, first):
        served.cancel(job.id)
        wait_until_over(served, job.id)


def test_a_failed_job_says_how_it_ended_and_what_it_ran(
    served: Controller, open_visitor: OpenVisitor
) -> None:
    (job,) = submit_text(served, "run: [sh, -c, 'echo bad luck; exit 3']\nname: fails\nteam: nlp")
    wait_until_over(served, job.id)
    visitor = open_visitor("viewer")
    page = visitor.open(f"/jobs/{job.id}")
    expect(page.locator("#sentence")).to_contain_text("Its exit code was 3. It ended at")
    expect(page.locator("code.command")).to_have_text("sh -c 'echo bad luck; exit 3'")
    expect(page.locator(".timeline rect.failed")).to_have_count(1)
    expect(page.locator(".timeline-ends")).to_contain_text("failed")
    expect(page.locator("text=In a terminal")).to_contain_text(f"wattline logs {job.id}")
    page.click("text=Read the end of its log")
    assert page.url.endswith("#log-title")
    page = visitor.open("/")
    ended = page.locator("section.card", has_text="Jobs waiting")
    expect(ended.locator("a", has_text="failed")).to_have_attribute("href", "/jobs?state=FAILED")


def test_a_page_says_that_its_session_has_ended(
    served: Controller, open_visitor: OpenVisitor, url: str
) -> None:
    (job,) = submit_text(served, "run: sleep 600\nname: watched", held=True)
    visitor = open_visitor("viewer")
    page = visitor.open(f"/jobs/{job.id}?rank=0")
    visitor.context.clear_cookies()
    link = page.locator("#connection a")
    page.evaluate("document.dispatchEvent(new Event('wattline-zoom'))")  # fetches the page again
    expect(link).to_have_text("session ended, log in")
    link.click()
    expect(page.locator("main")).to_contain_text("Your session has ended")
    expect(page.locator("input[name=next]")).to_have_value(f"/jobs/{job.id}?rank=0")
    served.cancel(job.id)
    visitor.messages.clear()  # the browser notes that the stream was refused


def test_a_page_changes_without_being_loaded_again(served: Controller, open_visitor: OpenVisitor) -> None:
    visitor = open_visitor("viewer")
    page = visitor.open("/jobs?text=appears")
    expect(page.locator("#total")).to_have_text("0")
    page.evaluate("window.kept = true")
    submit_text(served, "run: 'true'\nname: appears")
    expect(page.locator("#total")).to_have_text("1")
    expect(page.locator("table")).to_contain_text("SUCCEEDED")
    assert page.evaluate("window.kept")


def test_a_progress_bar_moves_in_the_log(served: Controller, open_visitor: OpenVisitor) -> None:
    (job,) = submit_text(served, BAR)
    wait_until_running(served, job.id)
    page = open_visitor("viewer").open(f"/jobs/{job.id}")
    bar = page.locator("#log .bar")
    expect(bar).to_contain_text("epoch 1 step")

    def step() -> int:
        found = re.search(r"step (\d+)", bar.text_content() or "")
        return int(found[1]) if found else 0

    first = step()
    wait_until(lambda: step() > first + 2)
    assert page.locator("#log").inner_text().count("epoch") == 1
    served.cancel(job.id)
    expect(page.locator(".state").first).to_contain_text("CANCELLED")


def test_a_long_log_is_paged_backwards_and_searched(served: Controller, open_visitor: OpenVisitor) -> None:
    script = "seq -f 'line %g' 1 1500; echo an Error here; seq -f 'more %g' 1 300; sleep 600"
    (job,) = submit_text(served, f'run: [sh, -c, "{script}"]\nname: writes')
    path = log_file(served.folder, job.id, 1)
    wait_until(lambda: path.exists() and b"more 300" in path.read_bytes())
    (path.parent / "rank1.log").write_text("the other rank\n")
    page = open_visitor("viewer").open(f"/jobs/{job.id}")
    shown = page.locator("#log span")
    expect(shown).to_have_count(200)
    expect(shown.last).to_have_text("more 300\n")
    page.click("#log-earlier")
    expect(shown).to_have_count(700)
    for count in (1200, 1700, 1801):
        page.click("#log-earlier")
        expect(shown).to_have_count(count)
    lines = page.locator("#log").inner_text().split("\n")[:-1]
    assert lines == path.read_text().split("\n")[:-1]
    expect(page.locator("#log-earlier")).to_have_count(0)
    with path.open("a") as file:
        file.write("it goes on\n")
    expect(shown.last).to_have_text("it goes on\n")  # the stream continues where the page ends
    expect(shown).to_have_count(1802)
    page.fill("#log-form [name=search]", "ERROR")
    page.click("#log-form button")
    expect(shown).to_have_text(["an Error here\n"])
    page.select_option("#log-form [name=rank]", "1")
    page.fill("#log-form [name=search]", "")
    page.click("#log-form button")
    expect(shown).to_have_text(["the other rank\n"])
    served.cancel(job.id)


def test_earlier_lines_are_read_without_scripts(
    served: Controller, open_visitor: OpenVisitor, chromium: Browser, url: str
) -> None:
    (job,) = submit_text(served, "run: [sh, -c, \"seq -f 'line %g' 1 450\"]\nname: wrote")
    wait_until_over(served, job.id)
    cookies = open_visitor("viewer").context.cookies()
    with open_window(chromium, url, java_script_enabled=False) as visitor:
        visitor.context.add_cookies(cookies)
        page = visitor.open(f"/jobs/{job.id}")
        found: list[str] = []
        while True:
            found = page.locator("#log span").all_text_contents() + found
            if not page.locator("#log-earlier").count():
                break
            page.click("#log-earlier")
        assert found == [f"line {number}\n" for number in range(1, 451)]


def test_a_viewer_sees_no_buttons_and_is_refused(served: Controller, open_visitor: OpenVisitor) -> None:
    (job,) = submit_text(served, "run: sleep 600\nname: untouchable", held=True)
    visitor = open_visitor("viewer")
    page = visitor.open(f"/jobs/{job.id}")
    assert page.locator("text=Cancel").count() == 0
    assert page.locator("nav >> text=Submit").count() == 0
    assert page.locator("nav >> text=Audit").count() == 0
    csrf = page.get_attribute('meta[name="csrf-token"]', "content")
    assert csrf
    status = visitor.fetch("POST", f"/api/v1/jobs/{job.id}/cancel", {"X-CSRF-Token": csrf})
    assert status == 403
    assert visitor.open("/audit").locator("main").inner_text().count("expected operator") == 1
    assert all("403" in message for message in visitor.messages), visitor.messages
    visitor.messages.clear()
    assert served.job(job.id).state == "PENDING"
    served.cancel(job.id)


def test_a_script_without_the_csrf_token_is_refused(served: Controller, open_visitor: OpenVisitor) -> None:
    visitor = open_visitor("operator")
    body = '{"run": "true"}'
    before = served.store.last_job_number()
    assert visitor.fetch("POST", "/api/v1/jobs", {"Content-Type": "application/json"}, body) == 403
    visitor.messages.clear()  # the browser notes the answer 403
    assert served.store.last_job_number() == before


def test_keys_search_choose_and_open(served: Controller, open_visitor: OpenVisitor) -> None:
    names = [submit_text(served, f"run: 'true'\nname: by-key-{n}")[0].id for n in range(3)]
    page = open_visitor("viewer").open("/")
    page.keyboard.press("/")
    page.keyboard.type("by-key")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?text=by-key")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{names[1]}")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()


def test_the_log_out_ends_the_session(open_visitor: OpenVisitor) -> None:
    visitor = open_visitor("user")
    page = visitor.page
    page.click("#logout")
    page.wait_for_url("**/login")
    page.goto(f"{visitor.url}/jobs")
    expect(page).to_have_url(re.compile(r"/login\?next=%2Fjobs$"))


def test_times_are_those_of_the_viewer(served: Controller, open_visitor: OpenVisitor) -> None:
    (job,) = submit_text(served, "run: 'true'\nname: zoned")
    row = wait_until_over(served, job.id)
    page = open_visitor("viewer").open(f"/jobs/{job.id}")
    expect(page.locator("#zone")).to_have_text("Europe/Berlin")
    shown = page.locator("#sentence time")
    utc = shown.get_attribute("datetime")
    assert utc
    assert utc == datetime.fromtimestamp(row.end_s or 0, UTC).isoformat(timespec="seconds")
    local = page.evaluate(
        "value => new Date(value).toLocaleTimeString('de-DE', {timeZone: 'Europe/Berlin'})", utc
    )
    assert shown.inner_text() == local
