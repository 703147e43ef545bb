"""Choice of the cases of a parametrised test that `make check` runs; `make test` runs all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

CASES_IN_CHECK = 3


def mark_extra_cases(items: Sequence[pytest.Item], limit: int = CASES_IN_CHECK) -> None:
    """Mark as slow all cases of a test but *limit*, which are spread evenly over all that are not slow."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is None:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        chosen = spread(len(cases), limit)
        for number, case in enumerate(cases):
            if number not in chosen:
                case.add_marker(pytest.mark.slow)


def spread(count: int, limit: int) -> set[int]:
    """Return *limit* of the numbers below *count*, the first and the last among them; all if fewer."""
    if count <= limit:
        return set(range(count))
    return {round(number * (count - 1) / (limit - 1)) for number in range(limit)}
