from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wattline.service.clock import Clock


class Hands:
    """A clock on the wall that somebody sets, and one that nobody can."""

    def __init__(self) -> None:
        self.wall_s, self.steady_s = 1000.0, 0.0
        self.said: list[str] = []

    def clock(self, last_s: float = 0.0) -> Clock:
        return Clock(last_s, self.said.append, lambda: self.wall_s, lambda: self.steady_s)

    def pass_s(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


def test_it_tells_the_time_of_day() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.pass_s(5)
    assert clock() == 1005
    assert hands.said == []


def test_a_clock_that_is_set_back_is_ignored_and_told() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall_s -= 3600
    hands.pass_s(5)
    assert clock() == 1005
    assert hands.said == ["the clock was set back by 3600 s"]


def test_a_clock_that_is_set_forward_is_followed() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall_s += 3600
    assert clock() == 4600


def test_after_a_restart_nothing_is_before_what_was_written() -> None:
    hands = Hands()
    clock = hands.clock(last_s=5000.0)
    assert clock() == 5000
    assert "4000 s behind" in hands.said[0]
    hands.pass_s(5)
    assert clock() == 5005


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-1e6, 1e6)), max_size=20))
def test_it_never_goes_back(moves: list[tuple[float, float]]) -> None:
    hands = Hands()
    clock = hands.clock()
    before = clock()
    for seconds, jump in moves:
        hands.pass_s(seconds)
        hands.wall_s += jump
        now = clock()
        assert now >= before + seconds - 1e-6
        before = now
