"""Charts in a real browser: hovering, zooming by the pointer and by keys; and the curves behind them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import UTC

import pytest
from playwright.sync_api import Page, expect

from support.browser import Visitor
from support.controllers import submit_text, wait_until_over
from wattline.service.controller import Controller
from wattline.service.storage.events import PowerSample
from wattline.service.web.charts import PageCurve, draw_chart

OpenVisitor = Callable[..., Visitor]


def read_path(curve: PageCurve, span: tuple[float, float]) -> str:
    chart = draw_chart("Power", "W", [curve], UTC, span=span)
    assert chart is not None
    return chart.lines[0].path


def test_a_curve_goes_to_the_edges_of_a_zoom() -> None:
    points = [(0.0, 0.0), (10.0, 100.0), (20.0, 0.0)]
    assert read_path(PageCurve("power", points, "main"), (5.0, 15.0)) == "M0.0 500.0L500.0 0.0L1000.0 500.0"
    assert (
        read_path(PageCurve("cap", points, "main", steps=True), (12.0, 16.0))
        == "M0.0 0.0L1000.0 0.0L1000.0 0.0"
    )
    ended = PageCurve("cap", points[:2], "main", steps=True)
    assert draw_chart("Cap", "W", [ended], UTC, span=(12.0, 16.0)) is None


def test_a_zoom_shows_no_value_that_was_not_measured() -> None:
    chart = draw_chart(
        "Power", "W", [PageCurve("p", [(0.0, 0.0), (10.0, 100.0)], "main")], UTC, span=(5.0, 15.0)
    )
    assert chart is not None
    assert json.loads(chart.data)["points"] == [[10.0, 100.0]]
    assert [value for _, value in chart.rows] == ["100"]


def test_a_gap_stays_a_gap() -> None:
    points = [(0.0, 50.0), (10.0, None), (20.0, 100.0), (30.0, 100.0)]
    assert read_path(PageCurve("power", points, "main"), (5.0, 25.0)) == "M750.0 0.0L1000.0 0.0"


@pytest.fixture(scope="module")
def reporter(served: Controller) -> str:
    """Run a job that reports 3,000 losses over a day, with one peak of a second, and return its id."""
    code = (
        "import json, os, time; first = time.time() - 86400;"
        "file = open(os.environ['WATTLINE_EVENTS'], 'a');"
        "[print(json.dumps(dict(at=first + 28.8 * n, event='report',"
        " metrics=dict(loss=5.0 if n == 1500 else 1.0 + n % 2))), file=file) for n in range(3000)]"
    )
    (job,) = submit_text(served, json.dumps({"run": ["python3", "-c", code], "name": "curve"}))
    row = wait_until_over(served, job.id)
    assert row.state == "SUCCEEDED"
    assert row.start_s is not None
    # A chart above, which an earlier time does not have.
    served.store.add_power_samples([PowerSample(row.start_s, "other", 9, 50.0, None, (job.id,))])
    return job.id


def read_span(page: Page) -> tuple[float, float]:
    chart = page.locator("[data-chart]", has_text="loss")
    data = json.loads(chart.get_attribute("data-chart") or "{}")
    return data["start"], data["end"]


@pytest.mark.slow
def test_dragging_zooms_and_the_service_sends_more_points(reporter: str, open_visitor: OpenVisitor) -> None:
    page = open_visitor("viewer").open(f"/jobs/{reporter}")
    picture = page.locator("[data-chart]", has_text="loss").locator(".plot svg:not(.xs)")
    picture.scroll_into_view_if_needed()
    before = read_span(page)
    box = picture.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.4, y)
    expect(page.locator(".hover", has_text=re.compile(r"^\d\d:\d\d:\d\d  [12] "))).to_be_visible()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"[?&]from=\d+\.\d+&to=\d+"))
    page.wait_for_selector("main >> text=whole time")
    start, end = read_span(page)
    assert end - start == pytest.approx(0.2 * (before[1] - before[0]), rel=0.05)
    shown = json.loads(page.locator("[data-chart]", has_text="loss").get_attribute("data-chart") or "")
    peak = [value for _, value in shown["points"] if value == 5.0]
    assert peak == [5.0]
    page.locator("[data-chart]", has_text="loss").locator(".plot svg:not(.xs)").dblclick()
    expect(page).not_to_have_url(re.compile("from="))
    expect(page.locator("main >> text=whole time")).to_have_count(0)


@pytest.mark.slow
def test_keys_move_along_a_curve_and_zoom(reporter: str, open_visitor: OpenVisitor) -> None:
    page = open_visitor("viewer").open(f"/jobs/{reporter}")
    plot = page.locator("[data-chart]", has_text="loss").locator(".plot")
    before = read_span(page)
    plot.focus()
    page.keyboard.press("ArrowRight")
    expect(plot.locator(".hover")).to_contain_text("  1 ")
    page.keyboard.press("ArrowRight")
    expect(plot.locator(".hover")).to_contain_text("  2 ")
    page.keyboard.press("Escape")
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile("from="))
    page.wait_for_selector("main >> text=whole time")
    start, end = read_span(page)
    assert end - start == pytest.approx((before[1] - before[0]) / 2, rel=0.01)
    expect(plot).to_be_focused()
    page.keyboard.press("0")
    expect(page.locator("main >> text=whole time")).to_have_count(0)
    assert read_span(page) == before


@pytest.mark.slow
def test_a_zoom_without_a_span_is_refused(reporter: str, open_visitor: OpenVisitor) -> None:
    visitor = open_visitor("viewer")
    page = visitor.open(f"/jobs/{reporter}?from=20&to=10")
    expect(page.locator("body")).to_contain_text("to is 10, expected a time after from, 20")
    visitor.messages.clear()  # the browser notes the answer 422
    now_s = time.time()
    expect(visitor.open(f"/?from={now_s - 9e4}&to={now_s - 8e4}").locator("main")).to_contain_text(
        "No power sample in this time."
    )
