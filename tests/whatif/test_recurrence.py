"""Sweeps and recurring jobs of a trace."""

import numpy as np

from wattline.cluster import nodes
from wattline.core.jobs import Jobs
from wattline.core.table import Labels
from wattline.trace import RecordedSchedule
from wattline.whatif.recurrence import Potential, estimate_potential


def estimate(jobs: Jobs, **columns: Labels) -> Potential:
    recorded = RecordedSchedule.of(len(jobs), columns) if columns else None
    return estimate_potential(jobs, recorded, np.ones(len(jobs), dtype=np.bool_), nodes("a100"))


def build(keys: list[str], **columns: object) -> Jobs:
    count = len(keys)
    base = {"submit_s": [60.0 * n for n in range(count)], "gpus": [1] * count, "duration_s": [3600] * count}
    return Jobs.of(key=keys, user=["ann"] * count, **(base | columns))  # type: ignore[arg-type]


def test_commands_that_differ_in_numbers_are_a_sweep() -> None:
    found = estimate(build([f"train --lr 0.{n}" for n in range(4)]))
    assert (found.sweeps, found.sweep_jobs, found.sweep_share) == (1, 4, 1.0)
    assert 0 < found.fusion_saves < 0.35  # four as one array take 2.95 times as long as one
    assert found.recurring == 0


def test_jobs_far_apart_or_of_other_sizes_are_no_sweep() -> None:
    assert estimate(build(["t 1", "t 2", "t 3"], submit_s=[0, 5000, 10_000])).sweeps == 0
    assert estimate(build(["t 1", "t 2", "t 3"], gpus=[1, 2, 4])).sweeps == 0


def test_a_job_array_is_a_sweep_however_long_it_takes_to_submit() -> None:
    jobs = build([""] * 3, submit_s=[0, 5000, 10_000])
    assert estimate(jobs, array=Labels.of(["77"] * 3)).sweep_jobs == 3


def test_a_job_that_ran_five_times_recurs() -> None:
    found = estimate(build(["nightly"] * 5, submit_s=[86_400 * n for n in range(5)]))
    assert (found.recurring, found.recurring_runs) == (1, 5)
    assert 0 < found.tuning_saves < 0.5


def test_a_trace_without_names_says_so() -> None:
    found = estimate(build([""] * 5))
    assert not found.known
    assert found.as_dict()["fusion_saves"] == [0.0, 0.0]
