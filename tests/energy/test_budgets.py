"""Budgets: units, parsing, and the allowance at a moment."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wattline as wl
from wattline.core.jobs import Jobs
from wattline.core.snapshot import MeterReadings, Snapshot
from wattline.energy.budgets import DAY_S, Budget, parse_budget
from wattline.energy.time_series import TimeSeries
from wattline.errors import ConfigError
from wattline.loop.state import build_empty_state


def build_snapshot(now_s: float, *readings: tuple[float, float, float]) -> Snapshot:
    """Return a state at *now_s* with readings (time, joules of the cluster, joules of team a)."""
    jobs = Jobs.of(submit_s=[0], gpus=[1], duration_s=[1], team=["a"])
    at_s = np.array([r[0] for r in readings], dtype=np.float64)
    used_j = np.array([r[1:] for r in readings], dtype=np.float64).reshape(-1, 2)
    return replace(build_empty_state(jobs, wl.nodes("a100")), now_s=now_s, meter=MeterReadings(at_s, used_j))


def test_joules_are_spread_over_the_rest_of_the_horizon() -> None:
    budget = Budget.joules(1000.0, horizon_s=100.0)
    assert budget.allowance(build_snapshot(0.0)) == (10.0, 1000.0, 100.0)
    assert budget.allowance(build_snapshot(50.0, (0, 0, 0), (50, 800, 0))) == (4.0, 200.0, 100.0)


def test_joules_left_after_the_horizon_may_be_used() -> None:
    budget = Budget.joules(1000.0, horizon_s=100.0)
    assert budget.allowance(build_snapshot(200.0, (0, 0, 0), (200, 900, 0))) == (math.inf, 100.0, math.inf)
    assert budget.allowance(build_snapshot(200.0, (0, 0, 0), (200, 1100, 0))) == (0.0, -100.0, math.inf)


def test_the_allowance_of_a_day_does_not_depend_on_the_day_before() -> None:
    budget = Budget.kwh_per_day(24.0)
    state = build_snapshot(DAY_S + 3600.0, (0, 0, 0), (DAY_S, 5e9, 0), (DAY_S + 3600, 5e9 + 3.6e6, 0))
    watts, left_j, until_s = budget.allowance(state)
    assert left_j == pytest.approx(23 * 3.6e6)
    assert watts == pytest.approx(1000.0)
    assert until_s == 2 * DAY_S


def test_a_team_counts_what_its_own_jobs_used() -> None:
    now = build_snapshot(10.0, (0, 0, 0), (10, 500, 70))
    assert Budget.joules(100.0, team="a").allowance(now).joules == 30.0
    assert Budget.joules(100.0, team="other").allowance(now).joules == 100.0


def test_a_series_returns_its_value_and_the_time_of_the_next() -> None:
    day = TimeSeries((0.0, 25_200.0, 72_000.0), (900.0, 300.0, 900.0), every_s=DAY_S)
    assert day.at(0.0) == (900.0, 25_200.0)
    assert day.at(30_000.0) == (300.0, 72_000.0)
    assert day.at(DAY_S + 1.0) == (900.0, DAY_S + 25_200.0)
    assert day.at(DAY_S - 1.0) == (900.0, DAY_S)
    once = TimeSeries((100.0, 200.0), (5.0, 7.0))
    assert [once.at(t) for t in (0.0, 150.0, 1e9)] == [(5.0, 100.0), (5.0, 200.0), (7.0, math.inf)]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6, unique=True), st.integers(0, 100_000))
def test_a_periodic_series_is_equal_in_every_period(at_s: list[int], now_s: int) -> None:
    series = TimeSeries((0.0, *sorted(t + 1.0 for t in at_s)), tuple(range(len(at_s) + 1)), every_s=2000.0)
    watts, until_s = series.at(now_s)
    assert until_s > now_s
    assert series.at(now_s + 2000.0) == (watts, until_s + 2000.0)


@given(
    st.floats(0.1, 1e6),
    st.lists(st.floats(0.0, 0.99), max_size=5, unique=True),
    st.integers(0, 1_000_000),
    st.floats(0.0, 1.0),
)
def test_the_next_change_of_a_series_is_always_later(
    every_s: float, at: list[float], period: int, part: float
) -> None:
    at_s = sorted({round(every_s * share, 9) for share in at} | {0.0})
    series = TimeSeries(tuple(at_s), tuple(float(row) for row in range(len(at_s))), every_s)
    now_s = (period + part) * every_s
    for _ in range(2 * len(at_s) + 2):
        watts, until_s = series.at(now_s)
        assert until_s > now_s
        assert series.at(np.nextafter(until_s, 0.0))[0] == watts or until_s - now_s < 1e-6
        now_s = until_s


@pytest.mark.parametrize("every_s", [3960.0, 2520.0, 0.7, 102.0])
def test_a_periodic_series_alternates_without_end(every_s: float) -> None:
    series, now_s = TimeSeries((0.0, every_s / 2), (100.0, 200.0), every_s), 0.0
    for number in range(5000):
        watts, until_s = series.at(now_s)
        assert (watts, until_s > now_s) == ((100.0, 200.0)[number % 2], True)
        now_s = until_s


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("12kW", Budget.watts(12_000.0)),
        ("300kWh/day", Budget.kwh_per_day(300.0)),
        ("300 kWh / d", Budget.kwh_per_day(300.0)),
        ("5GJ", Budget.joules(5e9)),
        ("2MWh/7d", Budget.joules(7.2e9, horizon_s=7 * DAY_S)),
        ("vc1:800W", Budget.watts(800.0, team="vc1")),
        ("a:b:1e3J", Budget.joules(1000.0, team="a:b")),
        ("eta=0.5", Budget.eta(0.5)),
        ("vc1:eta=0.25", Budget.eta(0.25, team="vc1")),
    ],
)
def test_budgets_are_parsed(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12",
        "12 horses",
        "-3kW",
        "5kW/day",
        ":5kW",
        "2MWh/soon",
        "eta=2",
        "eta=x",
        "nanW",
        "1e999x",
        "5GJ/0d",
    ],
)
def test_invalid_budgets_are_rejected_with_their_text(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"budget {re.escape(repr(text))}: "):
        parse_budget(text)


@pytest.mark.parametrize("text", ["300kWh/1d", "5GJ/24h", "vc1:2MWh / 1d"])
def test_one_day_is_ambiguous_and_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="ambiguous: every day, or the first") as raised:
        parse_budget(text)
    assert "/day" in raised.value.hint
    assert parse_budget("300kWh/86400s") == Budget.joules(300 * 3.6e6, horizon_s=DAY_S)


def test_the_repr_of_a_budget_is_its_constructor() -> None:
    assert (
        repr(Budget.joules(5e9, horizon_s=60.0, team="a")) == "Budget.joules(5e+09, horizon_s=60, team='a')"
    )
    assert repr(Budget.watts(3.0)) == "Budget.watts(3)"


@pytest.mark.parametrize(
    "text",
    ["12kW", "800W", "1.5kW", "vc1:300kWh/day", "5GJ", "1234567J", "2MWh", "eta=0.5", "a:eta=1", "0W"],
)
def test_a_budget_is_written_as_it_is_typed(text: str) -> None:
    assert str(parse_budget(text)) == text


@given(st.floats(0, 1e12, allow_subnormal=False), st.sampled_from(["W", "GJ", "kWh", "kWh/day", "MWh/7d"]))
def test_the_text_of_a_budget_reads_back(amount: float, unit: str) -> None:
    budget = parse_budget(f"{amount!r}{unit}")
    again = parse_budget(str(budget))
    assert replace(again, amount=0.0) == replace(budget, amount=0.0)
    assert again.amount == pytest.approx(budget.amount, rel=1e-12)


def test_impossible_amounts_are_rejected() -> None:
    for make in (
        lambda: Budget.watts(-1.0), lambda: Budget.watts(math.nan), lambda: Budget.eta(1.1),
        lambda: Budget.joules(1.0, horizon_s=0.0), lambda: Budget(1.0, "series"), lambda: TimeSeries((), ()),
        lambda: TimeSeries((1.0, 1.0), (1.0, 2.0)), lambda: TimeSeries((0.0, 9.0), (1.0, 2.0), every_s=5.0),
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            make()


def test_a_csv_file_of_watts_is_a_budget_over_time(tmp_path: Path) -> None:
    path = tmp_path / "tariff.csv"
    path.write_text("time_s,watts\n0,1000\n3600,500\n")
    budget = parse_budget(f"vc1:{path}/1d")
    assert budget.team == "vc1"
    assert parse_budget(f"{path}").over_time == TimeSeries((0.0, 3600.0), (1000.0, 500.0), name="tariff.csv")
    assert budget.over_time == TimeSeries((0.0, 3600.0), (1000.0, 500.0), DAY_S, "tariff.csv")


def test_a_budget_file_may_have_a_colon_in_its_path_and_any_case(tmp_path: Path) -> None:
    path = tmp_path / "d:e" / "UP.CSV"
    path.parent.mkdir()
    path.write_text("time_s,watts\n0,1000\n")
    assert parse_budget(f"{path}/1d").team == ""
