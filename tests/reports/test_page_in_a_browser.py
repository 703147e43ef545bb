"""Pages in chromium: no messages, sorting, copying, hovering, choosing, light and dark, phones."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wattline as wl
from support.random_decisions import RandomSwitching, RandomTuning
from wattline import policy
from wattline.placement.pack import Pack
from wattline.reports import build_plot_data, write_html

pytestmark = pytest.mark.slow
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        assert not os.environ.get("CI"), "chromium is not installed, and the CI variable requires it"
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    contexts = []

    def open_file(path: Path, width: int = 1200, **more: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **more))
        page = contexts[-1].new_page()
        page.messages = []
        page.on("console", lambda message: page.messages.append(message.text))
        page.on("pageerror", lambda error: page.messages.append(str(error)))
        page.goto(f"file://{path}")
        assert page.evaluate("document.body.dataset.ready") == "yes"
        return page

    yield open_file
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("pages")

    def write(cluster: str, *policies: Any) -> Path:
        path = folder / f"{cluster}-{len(policies)}.html"
        if not path.exists():
            jobs = wl.synth(count=80, seed=5, gpus_total=16, load=1.3)
            nodes = wl.parse_cluster(cluster)
            write_html(path, [build_plot_data(wl.run(wl.Sim(jobs, nodes), one)) for one in policies])
        return path

    return write


@pytest.mark.parametrize(("cluster", "drawn"), [("2xv100:8", "rect.bar"), ("66xv100:8", "image.heatmap")])
def test_a_browser_shows_every_plot_without_console_messages(
    cluster: str, drawn: str, written: Callable[..., Path], open_page: Callable[..., Any]
) -> None:
    path = written(cluster, policy.fifo, policy.Las())
    assert path.stat().st_size < 1.5e6
    page = open_page(path)
    assert page.messages == []
    assert page.locator(".plot:visible").count() == 4
    assert page.locator(f"{drawn}:visible").count() > 0


def test_a_page_fits_a_phone_and_follows_the_dark_mode(
    written: Callable[..., Path], open_page: Callable[..., Any]
) -> None:
    path = written("2xv100:8", policy.fifo, policy.Las())
    page = open_page(path, width=390, color_scheme="dark")
    assert page.messages == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".only-narrow:visible").count() == 3
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.click("#theme")
    assert page.evaluate(colour) == "rgb(255, 255, 255)" != dark


def test_a_table_is_sorted_by_its_values_and_can_be_copied(
    written: Callable[..., Path], open_page: Callable[..., Any]
) -> None:
    path = written("2xv100:8", policy.fifo, policy.Las(), policy.srtf)
    page = open_page(path)
    head = page.locator("table.data >> nth=0 >> thead th", has_text="mean JCT")
    rows = "[...document.querySelector('table.data').tBodies[0].rows]"
    cells = f"{rows}.map(row => parseFloat(row.cells[2].dataset.v))"
    head.locator("button").click()
    ascending = page.evaluate(cells)
    assert ascending == sorted(ascending)
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").press("Enter")
    assert page.evaluate(cells) == ascending[::-1]
    page.evaluate(
        "document.execCommand = () => { window.copied = document.activeElement.value; return true; }"
    )
    page.locator("button.copy").first.click()
    lines = page.evaluate("window.copied").splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("policy\tfinished\tmean JCT")


def test_the_value_under_the_pointer_is_shown(
    written: Callable[..., Path], open_page: Callable[..., Any]
) -> None:
    page = open_page(written("2xv100:8", policy.fifo, policy.Las()))
    page.locator('.plot[data-figure="tradeoff"] .only-wide .mark[data-t]').first.hover()
    assert re.search(r"[0-9.]+ kWh, mean JCT [0-9.]+ h", page.locator("#tip").inner_text())
    jct = page.locator('.plot[data-figure="jct"] .only-wide svg')
    jct.scroll_into_view_if_needed()
    box = jct.bounding_box()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 0.5 * box["height"])
    text = page.locator("#tip").inner_text()
    assert re.search(r"fifo: [0-9.]+\nlas: [0-9.]+", text)


def test_another_run_can_be_chosen_for_the_plot_of_nodes(
    written: Callable[..., Path], open_page: Callable[..., Any]
) -> None:
    page = open_page(written("2xv100:8", policy.fifo, policy.Las()))
    assert page.locator('[data-figure="nodes-0"]').is_visible()
    page.select_option("#run", "nodes-1")
    assert page.locator('[data-figure="nodes-1"]').is_visible()
    assert not page.locator('[data-figure="nodes-0"]').is_visible()


@pytest.mark.parametrize(("cluster", "drawn"), [("3xv100:8", "rect.hatch"), ("70xv100:8", "image.heatmap")])
def test_a_browser_draws_nodes_that_are_off(
    cluster: str, drawn: str, tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    jobs = wl.Jobs.of(submit_s=[0, 900, 2000], gpus=[2] * 3, duration_s=[400] * 3)
    log = wl.run(
        wl.Sim(jobs, wl.parse_cluster(cluster)), RandomTuning(policy.fifo), place=RandomSwitching(Pack())
    )
    write_html(tmp_path / "page.html", log)
    page = open_page(tmp_path / "page.html")
    assert page.messages == []
    assert page.locator(drawn).count() >= 2


def test_scripts_that_are_not_of_the_page_are_blocked_and_reported(
    written: Callable[..., Path], tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    text = written("2xv100:8", policy.fifo, policy.Las()).read_text(encoding="utf-8")
    for number, asking in enumerate(
        ('<script src="https://example.org/x.js"></script>', "<script>window.evil = 1</script>")
    ):
        path = tmp_path / f"{number}.html"
        path.write_text(text.replace("</body>", f"{asking}</body>"), "utf-8")
        page = open_page(path)
        assert "Content Security Policy" in page.messages[0]
        assert page.evaluate("window.evil") is None
