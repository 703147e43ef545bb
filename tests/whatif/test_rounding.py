"""Fractions of a second that records leave out."""

from dataclasses import replace

import numpy as np

from wattline.core.jobs import Jobs
from wattline.trace.recorded import RecordedSchedule
from wattline.whatif.reproduction import ReproductionError, average_errors
from wattline.whatif.rounding import DRAWS, add_fractions, count_draws

JOBS = Jobs.of(submit_s=[0, 5, 5, 5, 9], gpus=[1] * 5, duration_s=[3.0, 20, 1, 7, 60])


def record(start_s: list[float]) -> RecordedSchedule:
    times_s = np.array(start_s, dtype=np.float64)
    return RecordedSchedule.of(5, {"start_s": times_s, "end_s": times_s + JOBS.duration_s})


def test_fractions_are_drawn_where_a_second_matters() -> None:
    assert count_draws(JOBS, record([0, 5, 6, 7, 9])) == DRAWS


def test_exact_times_are_kept() -> None:
    assert count_draws(JOBS, record([0, 5.25, 6, 7, 9])) == 0


def test_a_second_of_long_jobs_does_not_matter() -> None:
    assert count_draws(replace(JOBS, steps=JOBS.steps * 1000), record([0, 5, 6, 7, 9])) == 0


def test_times_stay_in_their_second_and_order() -> None:
    for draw in range(1, 20):
        jobs, fraction_s = add_fractions(JOBS, draw)
        assert np.array_equal(np.floor(jobs.submit_s), JOBS.submit_s)
        assert (np.diff(jobs.submit_s) > 0).all()
        assert np.allclose(jobs.submit_s - fraction_s, JOBS.submit_s)
        assert (np.abs(jobs.duration_s - JOBS.duration_s) < 1).all()
        assert (jobs.duration_s > 0).all()


def test_draws_differ_and_are_repeatable() -> None:
    first, again, other = (add_fractions(JOBS, draw)[0].submit_s for draw in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_errors_are_averaged() -> None:
    one = ReproductionError(4, 10.0, 8.0, 2.0, 0.5, 0.4, 0.1)
    two = replace(one, wait_s=14.0, utilisation=0.6)
    both = average_errors([one, two])
    assert (both.jobs, both.wait_s, both.wait_recorded_s) == (4, 11.0, 10.0)
    assert both.utilisation == 0.5
