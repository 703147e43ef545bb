"""20,000 jobs: pages of the list, filters and counts, which equal those of the raw log."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect
from web_page import write_jobs

from support.browser import Visitor
from wattline.service.controller import Controller

pytestmark = pytest.mark.slow
OpenVisitor = Callable[..., Visitor]
COUNT, PENDING = 20_000, 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many")
    write_jobs(path, COUNT, PENDING)
    return path


def test_20_000_jobs_are_filtered_sorted_and_paged(
    served: Controller, folder: Path, open_visitor: OpenVisitor
) -> None:
    log = sqlite3.connect(f"file:{folder / 'state.db'}?mode=ro", uri=True)
    ended = dict(
        log.execute("SELECT data->>'$.state', count(*) FROM event WHERE kind = 'ended' GROUP BY 1").fetchall()
    )
    page = open_visitor("viewer").open("/jobs")
    expect(page.locator("#total")).to_have_text(str(COUNT))
    assert page.locator("#jobs tbody tr").count() == 100
    page.click(".states a:has-text('FAILED')")
    expect(page.locator("#total")).to_have_text(str(ended["FAILED"]))
    page.fill("#filters [name=team]", "team-3")
    page.fill("#filters [name=text]", "train-5-")
    page.click("#filters button")
    accepted = "SELECT job FROM event WHERE kind = 'accepted' AND data->>'$.team' = 'team-3'"
    matching = log.execute(
        f"{accepted} AND data->>'$.name' LIKE 'train-5-%' AND job IN"
        " (SELECT job FROM event WHERE kind = 'ended' AND data->>'$.state' = 'FAILED')"
    ).fetchall()
    expect(page.locator("#total")).to_have_text(str(len(matching)))
    expect(page.locator("#jobs tbody tr")).to_have_count(len(matching))
    assert "team=team-3" in page.url
    page.goto(page.url.partition("?")[0] + "?sort=energy&descending=true")
    top = log.execute(
        "SELECT job FROM event WHERE kind = 'ended' ORDER BY CAST(data->>'$.energy_j' AS REAL) DESC LIMIT 100"
    ).fetchall()
    shown = [text.strip() for text in page.locator("#jobs tbody tr td:first-child").all_inner_texts()]
    assert shown == [job for (job,) in top]
    page.click("nav[aria-label='Pages of the list'] a:has-text('last')")
    expect(page.locator("nav[aria-label='Pages of the list']")).to_contain_text("previous")
    assert "page=200" in page.url
    page.go_back()
    page.goto(page.url.partition("?")[0] + "?reason=outranked")
    waits = int(page.inner_text("#total"))
    assert 0 < waits <= PENDING
    log.close()
