"""Every price on the page is one of the rounds of the log, of a service that allocates by prices."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.browser import Visitor
from support.controllers import submit_text, wait_until, wait_until_running
from support.http_service import serve_http
from wattline.service.controller import Controller

pytestmark = pytest.mark.slow
OpenVisitor = Callable[..., Visitor]


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Controller]:
    with serve_http(folder, rate=1e6, policy="market") as controller:
        yield controller


def test_every_price_is_one_of_the_log(served: Controller, folder: Path, open_visitor: OpenVisitor) -> None:
    served.set_budgets(["1200W"])
    rows = submit_text(
        served, "run: sleep ${x}\nresources: {gpus: 2, time: 1h}\nmatrix: {x: [601, 602, 603]}"
    )
    wait_until_running(served, rows[0].id)
    log = sqlite3.connect(f"file:{folder / 'state.db'}?mode=ro", uri=True)
    visitor = open_visitor("viewer")

    def compare() -> bool:
        page = visitor.open("/prices")
        (epoch,) = log.execute("SELECT max(epoch) FROM round").fetchone()
        rounds = [
            json.loads(line)
            for (line,) in log.execute("SELECT line FROM round WHERE epoch = ? ORDER BY number", (epoch,))
        ]
        priced = [(one["t"], one["prices"]) for one in rounds if one.get("prices")]
        charts = {
            one.locator("figcaption").inner_text().split("\n")[0].split(" per ")[0].strip(): json.loads(
                one.get_attribute("data-chart") or ""
            )["points"]
            for one in page.locator("[data-chart]").all()
        }
        if not priced or set(charts) != {name for _, prices in priced for name in prices}:
            return False
        for name, points in charts.items():
            values = [prices[name] for _, prices in priced if name in prices]
            if [value for _, value in points] != pytest.approx(values, rel=1e-5):
                return False
        scarce = {name: value for name, value in priced[-1][1].items() if name != "energy"}
        best = max(scarce, key=lambda name: scarce[name])
        sentence = page.inner_text(".sentence")
        expected = f"The bottleneck is {best}." if scarce[best] > 0 else "No resource is scarce now."
        return sentence == expected

    wait_until(compare, "the prices differ from the log")
    log.close()
