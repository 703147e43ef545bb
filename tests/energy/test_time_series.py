"""Time series from CSV files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from wattline.energy.time_series import read_series
from wattline.errors import ConfigError


@pytest.mark.parametrize(
    ("table", "watts"),
    [
        ("time_s,watts\n0,100\n60,50\n", (100.0, 50.0)),
        ("time_s,kwh\n0,1\n3600,4\n10800,0\n", (1000.0, 2000.0)),
        ("time_s,price,spend\n0,0.2,10\n60,0.4,10\n", (50_000.0, 25_000.0)),
        ("time_s, carbon, emit\n0,400,2000\n60,100,2000\n", (5000.0, 20_000.0)),
    ],
)
def test_energy_money_and_carbon_are_converted_to_watts(
    tmp_path: Path, table: str, watts: tuple[float, ...]
) -> None:
    path = tmp_path / "over_time.csv"
    path.write_text(table)
    assert read_series(path).values == pytest.approx(watts)
    assert read_series(path).every_s == math.inf


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", r"csv:1: the columns are none"),
        ("time_s,watt\n0,1\n", r"csv:1: the columns are time_s, watt, expected time_s and watts or kwh"),
        ("time_s,watts,kwh\n0,1,1\n", r"csv:1: the columns"),
        ("time_s,watts\n", r"csv: has no rows"),
        ("time_s,watts\n0,1\n5,x\n", r"csv:3: watts is 'x', expected a number, at least 0"),
        ("time_s,watts\n0,-1\n", r"csv:2: watts is '-1'"),
        ("time_s,watts\n0,1\n0,2\n", r"csv:3: time_s is 0, expected above 0"),
        ("time_s,watts\n0\n", r"csv:2: watts is None"),
        ("time_s,kwh\n0,1\n", r"csv:2: one row of kwh"),
        ("time_s,price,spend\n0,0,1\n", r"csv:2: price is 0, expected above 0"),
        ("time_s,watts\n0,5000,77\n", r"csv:2: 3 cells, expected 2"),
        (f"time_s,watts\n0,{'0' * 200_000}\n", r"csv: cannot be read: field larger than"),
    ],
)
def test_invalid_tables_are_reported_with_file_and_line(tmp_path: Path, table: str, message: str) -> None:
    path = tmp_path / "over_time.csv"
    path.write_text(table)
    with pytest.raises(ConfigError, match=message):
        read_series(path)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.csv: cannot be read: No such file"):
        read_series(tmp_path / "nowhere.csv")


def test_a_table_that_cannot_repeat_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "over_time.csv"
    path.write_text("time_s,watts\n-5,100\n10,200\n")
    with pytest.raises(
        ConfigError, match=r"over_time\.csv: a series from -5 to 10 s cannot repeat every 60 s"
    ):
        read_series(path, 60.0)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "over_time.csv"
    path.write_text("\ufefftime_s,watts\n0,100\n", encoding="utf-8")
    assert read_series(path).values == (100.0,)
