"""Parts of a trace, other loads, and the jobs that count."""

import math
from dataclasses import replace

import numpy as np
import pytest

from wattline.core.jobs import Jobs
from wattline.errors import ConfigError
from wattline.trace import RecordedSchedule, Trace
from wattline.whatif.window import Window, parse_window_time, prepare_trace


def build() -> Trace:
    jobs = Jobs.of(
        submit_s=[0, 10, 20, 30, 40],
        gpus=[1] * 5,
        duration_s=[100, 5, 50, 10, 10],
        deadline_s=[200, math.inf, math.inf, 60, math.inf],
    )
    times = {"start_s": np.array([0.0, 10, 35, 36, 45]), "end_s": np.array([100.0, 15, 85, 46, 55])}
    return Trace(jobs, "csv", "records", "", recorded=RecordedSchedule.of(5, times))


def test_everything_counts_by_default() -> None:
    prepared = prepare_trace(build(), Window())
    assert prepared.counted.all()
    assert prepared.counted_span_s == (0, 40)


def test_warm_up_and_cool_down_are_simulated_and_not_counted() -> None:
    prepared = prepare_trace(build(), Window(warmup_s=10, cooldown_s=10))
    assert prepared.counted.tolist() == [False, True, True, True, False]
    assert len(prepared.jobs) == 5


def test_a_window_begins_with_the_jobs_that_ran_and_those_that_waited() -> None:
    prepared = prepare_trace(build(), Window(from_s=30))
    assert (prepared.running_first, prepared.waiting_first) == (1, 1)
    assert prepared.jobs.id.tolist() == ["0", "2", "3", "4"]
    assert prepared.jobs.submit_s.tolist() == [0, 0, 0, 10]
    assert prepared.jobs.duration_s.tolist() == [70, 50, 10, 10]  # the first has run for 30 s
    assert prepared.counted.tolist() == [False, False, True, True]
    assert prepared.trace.recorded is not None
    assert prepared.trace.recorded.start_s.tolist() == [-30, 5, 6, 15]
    assert prepared.jobs.deadline_s[2] == 30


def test_a_window_ends_before_its_end() -> None:
    assert prepare_trace(build(), Window(to_s=30)).jobs.id.tolist() == ["0", "1", "2"]


def test_a_higher_load_brings_the_submissions_together() -> None:
    prepared = prepare_trace(build(), Window(), load=2.0)
    assert prepared.jobs.submit_s.tolist() == [0, 5, 10, 15, 20]
    assert prepared.jobs.deadline_s[3] == 45  # as long after its submission as before
    assert prepared.trace.recorded is not None
    assert not prepared.trace.recorded.has_times


def test_times_are_dates_or_counted_from_the_first_submission() -> None:
    dated = replace(build(), origin_s=1_767_225_600.0)  # 2026-01-01, UTC
    assert parse_window_time("7d", build()) == 7 * 86_400
    assert parse_window_time("2026-01-03", dated) == 2 * 86_400
    assert parse_window_time("2026-01-01T01:00:00", dated) == 3600
    with pytest.raises(ConfigError, match="has no dates"):
        parse_window_time("2026-01-03", build())
    with pytest.raises(ConfigError, match="is no time"):
        parse_window_time("soon", dated)


def test_a_window_without_jobs_is_refused() -> None:
    with pytest.raises(ConfigError, match="no job was submitted"):
        prepare_trace(build(), Window(from_s=50))
    with pytest.raises(ConfigError, match="no job counts"):
        prepare_trace(build(), Window(warmup_s=30, cooldown_s=30))
    with pytest.raises(ConfigError, match="expected after 50 s"):
        Window(from_s=50, to_s=50)
