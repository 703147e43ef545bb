from __future__ import annotations

import pytest

from support.job_request import JOB_REQUEST
from wattline.backend.engine.job_record import Life
from wattline.backend.engine.job_spec import Work
from wattline.backend.engine.job_table import Rows
from wattline.cluster import nodes


def life(name: str, submit_s: float = 0.0, done: float = 0.0) -> Life:
    return Life(Work(name, ("true",)), JOB_REQUEST, submit_s, done=done)


def test_rows_are_added_in_the_order_in_which_jobs_come() -> None:
    rows = Rows(nodes("v100", gpus=2))
    first, second, third = life("1", 5.0), life("2", 3.0), life("3", 4.0)
    rows.enter([first, second])
    rows.enter([third])
    assert rows.jobs.id.tolist() == rows.ids == ["1", "2", "3"]
    assert rows.jobs.submit_s.tolist() == [5.0, 3.0, 4.0]
    assert [one.row for one in (first, second, third)] == [0, 1, 2]


def test_who_comes_back_has_a_new_row_of_what_is_left() -> None:
    rows = Rows(nodes("v100", gpus=2))
    one = life("1")
    rows.enter([one])
    one.done = 0.75
    rows.enter([one])
    assert rows.jobs.id.tolist() == ["1", "1~2"]
    assert rows.jobs.duration_s.tolist() == [60.0, 15.0]
    assert rows.steps(one, 0.75) == 0
    assert rows.steps(one, 0.875) == pytest.approx(7.5)
    assert rows.rate(one, 0.01) == pytest.approx(0.6)
    assert rows.rate(one, None) == 1


def test_a_new_table_begins_with_nobody() -> None:
    rows = Rows(nodes("v100", gpus=2))
    rows.enter([life("1")])
    rows.clear()
    rows.enter([life("1")])
    assert rows.jobs.id.tolist() == ["1"]
