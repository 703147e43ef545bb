"""Every page in light, in dark and on a phone: axe, width, console, and screenshots under out/web."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product

import pytest
from axe_playwright_python.sync_playwright import Axe

from support.browser import Visitor
from support.controllers import submit_text, wait_until, wait_until_over, wait_until_running
from wattline.service.controller import Controller

pytestmark = pytest.mark.slow
OpenVisitor = Callable[..., Visitor]

WINDOWS = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
CODE = (
    "import json, os, sys, time, math; file = open(os.environ['WATTLINE_EVENTS'], 'a');"
    "lr = float(sys.argv[1]);"
    "[print(json.dumps(dict(at=time.time() + 10 * n, event='report', fraction=n / 40, metrics=dict("
    "loss=2 * math.exp(-n * lr * 3) + lr, accuracy=1 - math.exp(-n * lr)))), file=file) for n in range(41)];"
    "print('done', lr)"
)


@pytest.fixture(scope="module")
def cluster(served: Controller) -> dict[str, str]:
    """Fill the service with jobs of all kinds; return the paths of its pages."""
    served.set_budgets(["1200W"])
    sweep = submit_text(
        served,
        f'run: [python3, -c, "{CODE}", "${{lr}}", "${{batch}}"]\nname: resnet-sweep\nteam: vision\n'
        "matrix: {lr: [0.01, 0.03, 0.1], batch: [32, 64]}\n",
    )
    submit_text(served, "run: [sh, -c, 'echo no such file >&2; exit 3']\nname: broken\nteam: nlp")
    for row in sweep:
        wait_until_over(served, row.id)
    loop = 'i=0; while true; do printf "\\repoch 1: %d%%" $((i % 100)); i=$((i+1)); sleep 0.3; done'
    (bar,) = submit_text(
        served, f"run: [sh, -c, '{loop}']\nname: train-bert\nteam: nlp\nmodel: bert\nresources: {{gpus: 2}}"
    )
    wait_until_running(served, bar.id)
    waiting = [
        submit_text(served, f"run: sleep 600\nname: gpt-{n}\nteam: nlp\nmodel: gpt2\nresources: {{gpus: 4}}")[
            0
        ]
        for n in range(5)
    ]
    submit_text(served, "run: sleep 600\nname: held-back", held=True)
    wait_until(lambda: len(served.store.read_rows("SELECT DISTINCT at_s FROM power_sample")) > 1)
    return {
        "overview": "/", "jobs": "/jobs", "job": f"/jobs/{sweep[0].id}", "running": f"/jobs/{bar.id}",
        "waiting": f"/jobs/{waiting[1].id}", "sweep": f"/sweeps/{sweep[0].id}?sort=loss", "teams": "/teams",
        "team": "/team?name=vision", "groups": "/groups", "prices": "/prices", "whatif": "/whatif",
        "submit": "/submit", "audit": "/audit", "docs": "/docs", "missing": "/jobs/999999",
    }  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS)
def test_pages_are_accessible_and_fit(
    cluster: dict[str, str], open_visitor: OpenVisitor, window: str
) -> None:
    visitor = open_visitor("operator", **WINDOWS[window])
    page, axe = visitor.page, Axe()
    found = []
    for name, path in cluster.items():
        visitor.open(path)
        if name in ("running", "waiting"):
            page.wait_for_selector("#explanation h2")
        visitor.take_picture(f"{name}-{window}")
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if wide > 0:
            found.append(f"{name}: {wide} px too wide")
        if window == "light" or name in ("overview", "jobs", "job", "sweep"):
            rules = {"runOnly": ["color-contrast"]} if window == "dark" else None
            for one in axe.run(page, options=rules).response["violations"]:
                targets = [str(node["target"]) for node in one["nodes"]][:4]
                found.append(f"{name}: {one['impact']}: {one['id']}: {one['help']}: {targets}")
    visitor.messages[:] = [text for text in visitor.messages if "404" not in text]  # of the missing job
    assert found == []


def test_all_links_of_the_menu_are_seen_on_a_phone(
    cluster: dict[str, str], open_visitor: OpenVisitor
) -> None:
    page = open_visitor("operator", **WINDOWS["phone"]).open(cluster["audit"])
    for link in page.locator("header nav a").all():
        box = link.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    assert page.locator("header nav a[aria-current]").inner_text() == "Audit"


def test_pages_below_a_list_mark_it_in_the_menu(cluster: dict[str, str], open_visitor: OpenVisitor) -> None:
    visitor = open_visitor("viewer")
    for name, expected in (("sweep", "Jobs"), ("team", "Teams"), ("job", "Jobs")):
        page = visitor.open(cluster[name])
        assert page.locator("header nav a[aria-current]").all_inner_texts() == [expected]


def test_labels_of_a_time_axis_stay_within_the_chart_and_apart(
    cluster: dict[str, str], open_visitor: OpenVisitor
) -> None:
    for window, name in product(("light", "phone"), ("job", "overview")):
        page = open_visitor("viewer", **WINDOWS[window]).open(cluster[name])
        for axis in page.locator("svg.xs").all():
            frame = axis.bounding_box()
            boxes = [text.bounding_box() for text in axis.locator("text").all()]
            assert frame is not None
            assert boxes
            edges = [(box["x"], box["x"] + box["width"]) for box in boxes if box is not None]
            assert all(left >= 0 for left, _ in edges)
            assert all(right <= frame["x"] + frame["width"] + 12 for _, right in edges)
            assert all(one[1] < other[0] for one, other in pairwise(edges))


def test_the_switch_changes_the_theme_and_lasts(cluster: dict[str, str], open_visitor: OpenVisitor) -> None:
    visitor = open_visitor("viewer", color_scheme="light")
    page = visitor.open("/")

    def colour() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = colour()
    page.click("#theme")
    dark = colour()
    assert light != dark
    visitor.open("/jobs")
    assert colour() == dark
