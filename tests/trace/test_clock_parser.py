"""Durations and limits as schedulers print them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.trace.clock_parser import parse_clock, parse_limit


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:00", 0.0),
        ("01:02:03", 3723.0),
        ("1-02:03:04", 93_784.0),
        ("120-00:00:00", 10_368_000.0),
        ("02:03", 123.0),
        ("02:03.500", 123.5),
        ("1-12", 129_600.0),
        ("1-12:30", 131_400.0),
        ("90", 90.0),
        ("90.5", 90.5),
        (" 01:00:00 ", 3600.0),
    ],
)
def test_a_clock_becomes_seconds(text: str, seconds: float) -> None:
    assert parse_clock(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1:2:3:4", "one", "nan", "inf", "1-", "10-02:03:+", "--"])
def test_what_is_no_clock_is_nan(text: str) -> None:
    assert math.isnan(parse_clock(text))


def test_a_limit_may_be_unlimited_unknown_or_wrong() -> None:
    assert parse_limit("UNLIMITED") == math.inf
    assert math.isnan(parse_limit("Partition_Limit"))
    assert math.isnan(parse_limit(""))
    assert parse_limit("1-00:00:00") == 86_400.0
    assert parse_limit("soon") == -1.0


@given(seconds=st.integers(0, 10**8))
def test_slurms_elapsed_reads_back(seconds: int) -> None:
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    assert parse_clock(f"{days}-{clock}" if days else clock) == seconds


@given(text=st.text(alphabet="0123456789-:. +aUNLIMITED", max_size=15))
def test_no_text_raises(text: str) -> None:
    assert parse_clock(text) >= 0 or math.isnan(parse_clock(text))
    assert parse_limit(text) >= -1 or math.isnan(parse_limit(text))
