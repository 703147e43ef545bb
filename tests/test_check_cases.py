"""`make check` runs some cases of each test, `make test` runs all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.check_cases import CASES_IN_CHECK, spread


@given(count=st.integers(0, 400), limit=st.integers(2, 20))
def test_as_many_cases_as_allowed_are_chosen_with_the_first_and_the_last(count: int, limit: int) -> None:
    chosen = spread(count, limit)
    assert len(chosen) == min(count, limit)
    assert chosen <= set(range(count))
    if count:
        assert {0, count - 1} <= chosen


@pytest.mark.parametrize("number", range(10))
def test_all_cases_are_collected_and_the_extra_ones_are_slow(
    request: pytest.FixtureRequest, number: int
) -> None:
    is_slow = request.node.get_closest_marker("slow") is not None
    assert is_slow == (number not in spread(10, CASES_IN_CHECK))


@pytest.mark.parametrize("number", range(CASES_IN_CHECK))
def test_few_cases_are_never_slow(request: pytest.FixtureRequest, number: int) -> None:
    assert request.node.get_closest_marker("slow") is None
