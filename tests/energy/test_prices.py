"""Energy prices and the cost of energy over time."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.energy.prices import Price, parse_price
from wattline.energy.time_series import KWH_J, TimeSeries
from wattline.errors import ConfigError

DAY = Price(TimeSeries((0.0, 25_200.0, 72_000.0), (0.1, 0.3, 0.1), every_s=86_400.0), pue=1.5)


def test_a_flat_price_never_changes_and_includes_the_pue() -> None:
    price = Price.flat(0.2, pue=1.5)
    assert price.at(5e6) == (pytest.approx(0.3 / KWH_J), math.inf)
    assert price.cost(np.array([0.0, 10.0, 3600.0]), np.array([0.0, 0.0, 7 * KWH_J])) == pytest.approx(2.1)


def test_energy_is_paid_at_the_price_of_its_hour() -> None:
    # One kW all day: 7 h and 4 h at 0.1, 13 h at 0.3, half as much again for cooling.
    energy_j = np.array([0.0, 24 * KWH_J])
    assert DAY.cost(np.array([0.0, 86_400.0]), energy_j) == pytest.approx(1.5 * (11 * 0.1 + 13 * 0.3))
    assert DAY.cost(np.array([0.0, 864_000.0]), 10 * energy_j) == pytest.approx(15 * (11 * 0.1 + 13 * 0.3))


@given(st.lists(st.floats(0, 500_000), min_size=2, max_size=8, unique=True))
def test_intermediate_readings_do_not_change_the_cost(at_s: list[float]) -> None:
    edges_s = np.sort(np.array(at_s))
    energy_j = 100.0 * (edges_s - edges_s[0])
    ends = np.array([0, -1])
    assert DAY.cost(edges_s, energy_j) == pytest.approx(DAY.cost(edges_s[ends], energy_j[ends]))


def test_prices_are_parsed_from_numbers_and_files(tmp_path: Path) -> None:
    assert parse_price("0.17", 1.3) == Price.flat(0.17, 1.3)
    path = tmp_path / "prices.csv"
    path.write_text("time_s,price\n0,0.1\n3600,0.4\n")
    assert parse_price(f"{path}/1d").per_kwh == TimeSeries((0.0, 3600.0), (0.1, 0.4), 86_400.0, "prices.csv")
    assert not math.isfinite(parse_price(str(path)).per_kwh.every_s)


@pytest.mark.parametrize("text", ["cheap", "-1", "inf", "nan"])
def test_invalid_prices_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="price"):
        parse_price(text)


def test_an_invalid_table_of_prices_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("time_s,price\n0,0.1\n60,dear\n")
    with pytest.raises(ConfigError, match=r"prices.csv:3: price is 'dear'"):
        parse_price(str(path))
    path.write_text("time_s,watts\n0,1\n")
    with pytest.raises(ConfigError, match=r"csv:1: the columns are time_s, watts, expected time_s and pr"):
        parse_price(str(path))


def test_a_pue_below_one_is_rejected() -> None:
    with pytest.raises(ConfigError, match="pue must be at least 1"):
        Price.flat(0.2, pue=0.9)


def test_a_price_round_trips_through_the_header_of_a_log() -> None:
    for price in (DAY, Price.flat(0.2)):
        assert Price.from_dict(price.as_dict()) == price
