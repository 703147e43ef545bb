"""What is learnt from a recorded schedule, and the error of its reproduction."""

import math

import numpy as np
import pytest

from wattline.cluster import nodes
from wattline.core.jobs import Jobs
from wattline.core.table import Labels
from wattline.trace import RecordedSchedule, Trace
from wattline.whatif.reproduction import (
    count_discordant_pairs,
    learn_priorities,
    list_candidates,
    measure_error,
    measure_start_delay_s,
    split_halves,
)

JOBS = Jobs.of(submit_s=[0, 10, 20, 30], gpus=[1, 1, 1, 1], duration_s=[100, 100, 100, 100])
EVERY = np.ones(4, dtype=np.bool_)


def record(**columns: object) -> RecordedSchedule:
    return RecordedSchedule.of(4, columns)


def test_an_equal_schedule_has_no_error() -> None:
    start_s = np.array([0.0, 10, 100, 110])
    recorded = record(start_s=start_s, end_s=start_s + 100)
    error = measure_error(JOBS, recorded, start_s, start_s + 100, EVERY, nodes("v100", gpus=2))
    assert (error.wait_error, error.utilisation_error, error.order, error.wait_off_s) == (0, 0, 0, 0)
    assert error.jobs == 4


def test_errors_are_relative_to_the_records() -> None:
    recorded = record(start_s=np.array([0.0, 10, 100, 110]), end_s=np.array([100.0, 110, 200, 210]))
    start_s = np.array([0.0, 10, 110, 100])
    error = measure_error(JOBS, recorded, start_s, start_s + 100, EVERY, nodes("v100", gpus=2))
    assert error.wait_recorded_s == error.wait_s == 40
    assert error.wait_off_s == 5
    assert error.order == pytest.approx(1 / 6)  # one of six pairs


def test_pairs_in_another_order_are_counted() -> None:
    assert count_discordant_pairs(np.array([1.0, 2, 3]), np.array([1.0, 2, 3])) == 0
    assert count_discordant_pairs(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == 1
    assert count_discordant_pairs(np.array([1.0]), np.array([3.0])) == 0


def test_the_delay_of_a_start_counts_from_the_moment_at_which_it_was_possible() -> None:
    # Two start 2 s after their submission, two 2 s after the end of another job.
    recorded = record(start_s=np.array([2.0, 12, 104, 114]), end_s=np.array([102.0, 112, 204, 214]))
    assert measure_start_delay_s(JOBS, recorded, EVERY, 2) == 2


def test_jobs_that_found_room_tell_how_long_a_start_takes() -> None:
    # Each starts 7 s after its submission, at the very moment at which another one ends.
    count = 20
    jobs = Jobs.of(submit_s=[10.0 * n for n in range(count)], gpus=[1] * count, duration_s=[20.0] * count)
    recorded = RecordedSchedule.of(count, {"start_s": jobs.submit_s + 7, "end_s": jobs.submit_s + 27})
    assert measure_start_delay_s(jobs, recorded, np.ones(count, dtype=np.bool_), 8) == 7


def test_the_partition_that_waits_less_has_the_higher_priority() -> None:
    recorded = record(
        start_s=np.array([50.0, 10, 70, 30]), partition=Labels.of(["batch", "debug", "batch", "debug"])
    )
    priority = learn_priorities(JOBS, recorded, EVERY)
    assert priority[1] == priority[3] > priority[0] == priority[2]


def test_candidates_need_what_their_rule_needs() -> None:
    plain = Trace(JOBS, "csv", "t", "", recorded=record(start_s=JOBS.submit_s))
    assert [str(one) for one in list_candidates(plain)] == [
        f"fifo, {backfill} backfill" for backfill in ("none", "easy", "greedy")
    ]
    two = record(start_s=JOBS.submit_s, partition=Labels.of(["a", "b", "a", "b"]))
    names = [str(one) for one in list_candidates(Trace(JOBS, "csv", "t", "", recorded=two))]
    assert "priority by partition, easy backfill" in names


def test_halves_have_the_same_number_of_jobs() -> None:
    first, second = split_halves(JOBS, np.array([True, True, True, False]))
    assert (first.tolist(), second.tolist()) == ([True, False, False, False], [False, True, True, False])


def test_without_recorded_times_there_is_no_error_to_state() -> None:
    error = measure_error(JOBS, record(), JOBS.submit_s, JOBS.submit_s, EVERY, nodes("v100"))
    assert error.jobs == 0
    assert math.isnan(error.wait_s)
