from __future__ import annotations

import pytest

from support.job_request import JOB_REQUEST
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.job_table import JobTable
from wattline.cluster import nodes


def record(name: str, submit_s: float = 0.0, completed_fraction: float = 0.0) -> JobRecord:
    return JobRecord(JobSpec(name, ("true",)), JOB_REQUEST, submit_s, completed_fraction=completed_fraction)


def test_rows_are_appended_in_the_order_of_arrival() -> None:
    table = JobTable(nodes("v100", gpus=2))
    first, second, third = record("1", 5.0), record("2", 3.0), record("3", 4.0)
    table.append([first, second])
    table.append([third])
    assert table.jobs.id.tolist() == table.ids == ["1", "2", "3"]
    assert table.jobs.submit_s.tolist() == [5.0, 3.0, 4.0]
    assert [one.row for one in (first, second, third)] == [0, 1, 2]


def test_a_job_that_comes_back_gets_a_new_row_with_the_remaining_work() -> None:
    table = JobTable(nodes("v100", gpus=2))
    one = record("1")
    table.append([one])
    one.completed_fraction = 0.75
    table.append([one])
    assert table.jobs.id.tolist() == ["1", "1~2"]
    assert table.jobs.duration_s.tolist() == [60.0, 15.0]
    assert table.steps(one, 0.75) == 0
    assert table.steps(one, 0.875) == pytest.approx(7.5)
    assert table.steps_per_s(one, 0.01) == pytest.approx(0.6)
    assert table.steps_per_s(one, None) == 1


def test_a_cleared_table_counts_rows_from_the_first() -> None:
    table = JobTable(nodes("v100", gpus=2))
    table.append([record("1")])
    table.clear()
    table.append([record("1")])
    assert table.jobs.id.tolist() == ["1"]
