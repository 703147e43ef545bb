"""Text of users on pages: shown as text wherever it comes from, and never run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from support.browser import Visitor, open_window
from support.controllers import submit_text, wait_until_over
from wattline.batch_size.bandit import TuningTask
from wattline.batch_size.history import RunHistory
from wattline.jobfile import read_document
from wattline.service.controller import Controller
from wattline.service.http.auth import TokenStore
from wattline.service.web.text import show_hidden

pytestmark = pytest.mark.slow
OpenVisitor = Callable[..., Visitor]

EVIL = "<img src=x onerror=pwned=1>\"'><script>pwned=1</script>{{7+7}}"
ADDRESS = "javascript:pwned=1"
BIDI = "\u202egnp.exe\u2066"


def assert_harmless(page: Page, path: str) -> None:
    """Check that nothing of a user's text became an element, or ran."""
    assert page.evaluate("typeof pwned") == "undefined", path
    assert page.locator("img").count() == 0, path
    for script in page.locator("script").all():
        source, kind = script.get_attribute("src") or "", script.get_attribute("type")
        assert source.startswith("/static/") or kind == "application/json", path
    for link in page.locator("a").all():
        assert not (link.get_attribute("href") or "").startswith("javascript:"), path
    assert page.locator("[onerror], [onclick], [style]").count() == 0, path
    assert "49" not in page.title(), path


def submit_evil(served: Controller, workdir: Path) -> list[str]:
    """Submit a sweep with markup in every field that a user can set, and return the ids."""
    code = (
        "import json, os, sys, time; print(sys.argv[1]); print(chr(27) + '[31m' + sys.argv[2]);"
        "file = open(os.environ['WATTLINE_EVENTS'], 'a');"
        "[print(json.dumps(dict(at=time.time() + n, event='report', metrics={sys.argv[1]: n})), file=file)"
        " for n in range(3)]; sys.exit(sys.argv[1])"
    )
    job = {
        "run": ["python3", "-c", code, "${value}", BIDI],
        "name": f"{EVIL}{BIDI}{ADDRESS}",
        "team": EVIL,
        "model": "resnet50",
        "matrix": {"value": [EVIL, "</script><script>pwned=1</script>", ADDRESS]},
        "env": {"NOTE": EVIL},
        "recurring": {"group": EVIL},
        "deadline": "2030-01-01T00:00Z",
        "checkpoint": {"dir": "<script>pwned=1</script>"},
    }
    folder = workdir / "<img src=x onerror=pwned=1>"
    folder.mkdir(exist_ok=True)
    rows = served.submit(read_document(job, "job"), "", str(folder))
    for row in rows:
        assert wait_until_over(served, row.id).state == "FAILED"
    return [row.id for row in rows]


def test_markup_in_every_field_is_shown_as_text(
    served: Controller, open_visitor: OpenVisitor, folder: Path, tmp_path: Path
) -> None:
    ids = submit_evil(served, tmp_path)
    with RunHistory.open(folder / "memory.db") as history:
        history.store_task(EVIL, TuningTask((16, 32), 32, 10))
    served.set_budgets(["5kW"])
    visitor = open_visitor("operator")
    page = visitor.page
    team, text = quote(EVIL, safe=""), quote(EVIL[:200], safe="")
    for path in (
        "/", "/jobs", f"/jobs?text={text}", f"/jobs?team={team}", f"/jobs/{ids[0]}", f"/sweeps/{ids[0]}",
        f"/sweeps/{ids[0]}?sort={text}&metric={text}", f"/jobs/{ids[0]}?search={text}", "/teams",
        f"/team?name={team}", "/groups", f"/group?name={team}", "/whatif", "/prices", "/submit", "/audit",
    ):  # fmt: skip
        visitor.open(path)
        page.wait_for_selector("#connection.live")
        assert_harmless(page, path)
    visitor.open(f"/jobs/{ids[0]}")
    expect(page.locator("h1")).to_contain_text(EVIL)
    expect(page.locator("h1")).to_contain_text("⟦U+202E⟧")
    expect(page.locator("#log")).to_contain_text(EVIL)
    expect(page.locator("#log")).to_contain_text("⟦U+001B⟧[31m⟦U+202E⟧")
    expect(page.locator("figcaption", has_text=EVIL)).to_be_visible()
    visitor.open(f"/sweeps/{ids[0]}")
    expect(page.locator(".members")).to_contain_text("</script><script>pwned=1</script>")


def test_earlier_lines_and_values_of_charts_are_shown_as_text(
    served: Controller, open_visitor: OpenVisitor
) -> None:
    code = (
        "import json, os, sys, time; [print(sys.argv[1], n) for n in range(450)];"
        "file = open(os.environ['WATTLINE_EVENTS'], 'a');"
        "[print(json.dumps(dict(at=time.time() - 9 + n, event='report', metrics={sys.argv[1]: n})),"
        " file=file) for n in range(9)]"
    )
    (row,) = submit_text(served, json.dumps({"run": ["python3", "-c", code, EVIL], "name": "writes"}))
    assert wait_until_over(served, row.id).state == "SUCCEEDED"
    page = open_visitor("viewer").open(f"/jobs/{row.id}")
    page.click("#log-earlier")
    expect(page.locator("#log span")).to_have_count(450)
    expect(page.locator("#log span").first).to_have_text(f"{EVIL} 0\n")
    page.locator(".plot").last.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".plot").last.locator(".hover")).to_contain_text("  0 ")
    assert_harmless(page, "job")


def test_the_name_of_a_token_is_shown_as_text(
    served: Controller, open_visitor: OpenVisitor, chromium: Browser, url: str
) -> None:
    token = TokenStore(served.store, served.clock).create(EVIL, "operator")
    with open_window(chromium, url) as visitor:
        page = visitor.log_in(token)
        expect(page.locator(".caller")).to_contain_text(EVIL)
        visitor.open("/audit")
        expect(page.locator("main")).to_contain_text(EVIL)
        assert_harmless(page, "audit")
        assert visitor.messages == []


def test_a_live_log_is_shown_as_text(served: Controller, open_visitor: OpenVisitor) -> None:
    job = {
        "run": ["sh", "-c", 'while true; do echo "$1$2"; sleep 0.2; done', "sh", EVIL, BIDI],
        "name": "talks",
    }
    (row,) = submit_text(served, json.dumps(job))
    page = open_visitor("viewer").open(f"/jobs/{row.id}")
    expect(page.locator("#log span").first).to_have_text(show_hidden(f"{EVIL}{BIDI}") + "\n")
    assert page.evaluate("typeof pwned") == "undefined"
    served.cancel(row.id)


def test_responses_forbid_everything_that_pages_do_not_need(url: str, open_visitor: OpenVisitor) -> None:
    visitor = open_visitor("viewer")
    for path in ("/", "/jobs", "/login", "/docs"):
        answer = visitor.page.goto(f"{url}{path}")
        assert answer is not None
        headers = answer.headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "style=" not in (answer.text())
    style = visitor.page.request.get(f"{url}{visitor.page.get_attribute('link[rel=stylesheet]', 'href')}")
    assert style.headers["cache-control"] == "public, max-age=31536000, immutable"
    other = visitor.page.request.get(f"{url}/", headers={"Host": "evil.example"})
    assert other.status == 403
