"""Fractions of a second that records leave out, drawn several times where they matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Floats
from wattline.trace.recorded import RecordedSchedule

DRAWS = 8
_LEAST_PART = 0.01  # of the median duration: a second that is less does not matter


def count_draws(jobs: Jobs, recorded: RecordedSchedule) -> int:
    """Return how often fractions are drawn; 0: times are exact, or jobs so long that a second is nothing.

    Where jobs last seconds and queue for seconds, a second more or less in one of them decides which job
    starts next: the mean wait of 150 jobs differs by some 10 % from draw to draw.
    """
    times_s = np.concatenate((jobs.submit_s, recorded.start_s, recorded.end_s))
    times_s = times_s[np.isfinite(times_s)]
    if not len(times_s) or (times_s != np.floor(times_s)).any():
        return 0
    return DRAWS if float(np.median(jobs.duration_s)) * _LEAST_PART < 1.0 else 0


def add_fractions(jobs: Jobs, draw: int) -> tuple[Jobs, Floats]:
    """Return *jobs* with the fractions of draw number *draw*, and those of their submissions.

    Submission, start and end were cut to whole seconds. Jobs of the same second keep their order.
    """
    random = np.random.default_rng(draw)
    submit, start, end = random.random((3, len(jobs)))
    order = np.argsort(jobs.submit_s, kind="stable")
    drawn = np.lexsort((submit, jobs.submit_s))
    fraction_s = np.empty(len(jobs))
    fraction_s[order] = submit[drawn]
    duration_s = np.maximum(jobs.duration_s + end - start, 0.5 * jobs.duration_s)
    moved = replace(
        jobs,
        submit_s=jobs.submit_s + fraction_s,
        deadline_s=jobs.deadline_s + fraction_s,
        steps=duration_s / jobs.step_s,
    )
    return moved, fraction_s
