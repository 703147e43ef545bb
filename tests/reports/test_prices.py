"""Prices in reports: curves, and the resource that was the bottleneck."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

import wattline as wl
from wattline.core.actions import NO_ACTIONS
from wattline.core.events import ARRIVED, METERED, Event, build_events
from wattline.core.jobs import Jobs
from wattline.core.resource_prices import ResourcePrices
from wattline.loop.runlog import Log
from wattline.reports import build_plot_data, report, write_html
from wattline.reports.compare import compare
from wattline.reports.data.prices import Bottleneck, collect_prices, find_bottlenecks
from wattline.reports.data.step_function import StepFunction
from wattline.reports.figures.prices import name_price_unit
from wattline.reports.html.page import build_figures

NO_HELD = np.empty((0, 2), dtype=np.int64)
HOUR_S = 3600.0


def log_of(*rounds: tuple[float, dict[str, float]], end_h: float = 24.0) -> Log:
    """Return the log of a job that came at 100 s and these prices, each from an hour after it on."""
    jobs = Jobs.of(submit_s=[100.0], gpus=[1], duration_s=[60.0])
    log = Log({"policy": "market", "seed": 0, "trace": {}}, jobs, wl.nodes("a100"))
    log.append(100.0, build_events(Event(ARRIVED, 0, 100.0)), NO_ACTIONS, NO_HELD)
    for at_h, prices in rounds:
        log.append(
            100.0 + at_h * HOUR_S, build_events(), NO_ACTIONS, NO_HELD, prices=ResourcePrices.of(prices)
        )
    end_s = 100.0 + end_h * HOUR_S
    log.append(end_s, build_events(Event(METERED, -1, end_s, energy_j=1.0)), NO_ACTIONS, NO_HELD)
    return log


def day() -> Log:
    return log_of(
        (0.0, {"a100": 0.0, "watts": 0.0, "energy": 1e-4}),
        (4.0, {"a100": 20.0, "watts": 1.0, "energy": 1e-4}),
        (9.0, {"a100": 5.0, "watts": 70.0, "energy": 9e-3}),
        (9.2, {"a100": 80.0, "watts": 70.0, "energy": 9e-3}),  # too short to be seen
        (9.25, {"a100": 5.0, "watts": 70.0, "energy": 9e-3}),
        (17.0, {"a100": 0.0, "watts": 0.0, "energy": 1e-4}),
    )


def test_the_report_names_the_bottleneck_and_its_time() -> None:
    found = report(day())
    assert "watts were the bottleneck from 9 to 17 h" in found.bottleneck_text
    assert "a100 GPUs were the bottleneck from 4 to 9 h" in found.bottleneck_text
    assert [entry["resource"] for entry in found.as_dict()["bottlenecks"]] == ["a100", "watts"]
    assert "watts were the bottleneck from 9 to 17 h" in " ".join(str(found).split())


def test_a_log_without_prices_has_no_bottleneck() -> None:
    found = report(log_of())
    assert (found.bottlenecks, found.bottleneck_text) == ((), "")
    assert "bottleneck" not in str(found)


def test_the_price_of_a_joule_is_no_bottleneck() -> None:
    prices = {"energy": StepFunction(np.array([0.0]), np.array([9.0]))}
    assert find_bottlenecks(prices, HOUR_S) == ()


def test_a_price_that_stays_at_the_end_lasts_until_the_end() -> None:
    log = log_of((0.0, {"a100": 3.0, "energy": 0.0}))
    assert find_bottlenecks(collect_prices(log), 24 * HOUR_S) == (Bottleneck("a100", 0.0, 24 * HOUR_S),)


def test_a_round_is_logged_if_only_its_prices_are_new() -> None:
    same = {"a100": 3.0, "energy": 0.0}
    log = log_of((0.0, same), (1.0, same), (2.0, {**same, "a100": 4.0}))
    assert [at_s - 100.0 for at_s in log.now_s[1:-1].tolist()] == [0.0, 2 * HOUR_S]
    assert all(math.isnan(prices.bound) for prices in log.prices if prices is not None)


def test_the_page_draws_prices_and_says_the_bottleneck(tmp_path: Path) -> None:
    run = build_plot_data(day())
    figure = build_figures(compare(run))["prices"]
    assert [(trace["name"], trace["yaxis"]) for trace in figure["data"]] == [
        ("a100", "y"), ("watts", "y"), ("energy", "y2"),
    ]  # fmt: skip
    assert figure["data"][1]["y"].max() == 70.0
    write_html(tmp_path / "page.html", run)
    page = (tmp_path / "page.html").read_text()
    assert "watts were the bottleneck from 9 to 17 h" in page
    assert "price of a GPU-hour (s)" in page


def test_prices_have_the_unit_of_the_aim_of_their_policy() -> None:
    assert name_price_unit(["market"]) == "s"
    assert name_price_unit(["market:aim=cost"]) == "money"
    assert name_price_unit(["market", "market:aim=cost"]) == "s or money"
