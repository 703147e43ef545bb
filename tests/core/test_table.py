from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wattline.core.jobs import Jobs
from wattline.core.table import Labels
from wattline.models.job_classes import find_unique_rows

WORDS = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=8)


@given(WORDS, WORDS)
def test_concatenated_labels_keep_the_codes_of_existing_names(first: list[str], more: list[str]) -> None:
    ours = Labels.of(first)
    both = ours.concatenate(Labels.of(more))
    assert both.words() == first + more
    assert both.names[: len(ours.names)] == ours.names


def test_concatenated_tables_keep_all_rows() -> None:
    first = Jobs.of(id=["x"], submit_s=[1], gpus=[1], duration_s=[2], team=["red"])
    more = Jobs.of(id=["y", "z"], submit_s=[0, 3], gpus=[2, 4], duration_s=[5, 6], team=["blue", "red"])
    both = first.concatenate(more)
    for field in fields(Jobs):
        column = getattr(both, field.name)
        rows = [getattr(part, field.name) for part in (first, more)]
        if isinstance(column, Labels):
            assert column.words() == rows[0].words() + rows[1].words()
        else:
            assert column.tolist() == [*rows[0].tolist(), *rows[1].tolist()]


@given(st.lists(st.tuples(*[st.integers(-3, 3)] * 3), max_size=30))
def test_distinct_rows_are_numbered_in_sorted_order(rows: list[tuple[int, ...]]) -> None:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    code, first = find_unique_rows(table)
    expected, inverse = np.unique(table, axis=0, return_inverse=True)
    assert np.array_equal(code, inverse.reshape(-1))
    assert np.array_equal(table[first], expected)
