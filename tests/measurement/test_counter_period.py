"""Renewal periods of energy counters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.measurement.counter_period import CounterPeriod, min_window_s


@given(period_s=st.floats(0.01, 1.0), read_s=st.floats(0.0005, 0.004), phase_s=st.floats(0.0, 1.0))
def test_the_period_is_the_time_between_two_changes(period_s: float, read_s: float, phase_s: float) -> None:
    period, now_s = CounterPeriod(), phase_s
    while period.period_s is None:
        period.observe(now_s, math.floor(now_s / period_s))
        now_s += read_s
    assert period.period_s == pytest.approx(period_s, abs=2 * read_s)
    assert now_s - phase_s < 8 * period_s


def test_readings_rarer_than_renewals_give_at_most_a_tenth_of_a_second() -> None:
    for read_s, expected_s in ((0.03, 0.03), (5.0, 0.1)):
        period = CounterPeriod()
        for number in range(7):
            period.observe(number * read_s, float(number))
        assert period.period_s == pytest.approx(expected_s)


def test_a_pause_is_not_a_period() -> None:
    period = CounterPeriod()
    for number in range(40):
        period.observe(0.05 * number + (100.0 if number > 19 else 0.0), float(number // 2))
        if number == 19:
            period.pause()
    assert period.period_s == pytest.approx(0.1)


def test_a_window_takes_two_seconds_or_twenty_periods() -> None:
    assert [min_window_s(period_s) for period_s in (0.001, 0.1, 0.5)] == [2.0, 2.0, 10.0]
