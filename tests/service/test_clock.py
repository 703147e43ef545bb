from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.service.clock import Clock


class FakeTime:
    """A wall clock that can be set, and a monotonic clock."""

    def __init__(self) -> None:
        self.wall_s, self.steady_s = 1000.0, 0.0

    def clock(self, last_s: float = 0.0) -> Clock:
        return Clock(last_s, lambda: self.wall_s, lambda: self.steady_s)

    def advance(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


def test_the_clock_follows_the_time_of_day(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeTime()
    clock = fake.clock()
    fake.advance(5)
    assert clock() == 1005
    assert caplog.messages == []


def test_a_clock_that_is_set_back_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeTime()
    clock = fake.clock()
    fake.wall_s -= 3600
    fake.advance(5)
    assert clock() == 1005
    assert caplog.messages == ["the clock was set back by 3600 s"]


def test_a_clock_that_is_set_forward_is_followed() -> None:
    fake = FakeTime()
    clock = fake.clock()
    fake.wall_s += 3600
    assert clock() == 4600


def test_after_a_restart_no_time_is_before_the_latest_event(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeTime()
    clock = fake.clock(last_s=5000.0)
    assert clock() == 5000
    assert "4000 s behind" in caplog.messages[0]
    fake.advance(5)
    assert clock() == 5005


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-1e6, 1e6)), max_size=20))
def test_the_clock_never_goes_back(moves: list[tuple[float, float]]) -> None:
    fake = FakeTime()
    clock = fake.clock()
    before = clock()
    for seconds, jump in moves:
        fake.advance(seconds)
        fake.wall_s += jump
        now = clock()
        assert now >= before + seconds - 1e-6
        before = now
