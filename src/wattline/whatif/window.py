"""Parts of a trace: a window of time, other loads, and the jobs that count."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Bools, Floats
from wattline.errors import ConfigError
from wattline.trace import Trace
from wattline.trace.field_parser import moment
from wattline.units import parse_seconds


@dataclass(frozen=True)
class Window:
    """Times of a trace that are simulated, in seconds after its first submission, and those that count.

    Jobs submitted in the first *warmup_s* and the last *cooldown_s* are simulated, but not counted.
    """

    from_s: float = 0.0
    to_s: float = math.inf
    warmup_s: float = 0.0
    cooldown_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.from_s < self.to_s:
            raise ConfigError(f"the window ends at {self.to_s:g} s, expected after {self.from_s:g} s")
        for name in ("from_s", "warmup_s", "cooldown_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")


def parse_window_time(text: str, trace: Trace) -> float:
    """Return the seconds after the first submission that *text* means: `7d`, or a date as in the records."""
    try:
        return parse_seconds(text)
    except ValueError:
        since_1970_s = moment(text)
    if math.isnan(since_1970_s):
        raise ConfigError(f"{text!r} is no time, expected 7d after the first submission, or 2026-01-31")
    if trace.origin_s is None:
        raise ConfigError(
            f"{text}: {trace.name} has no dates, expected a time after the first submission, 7d"
        )
    return since_1970_s - trace.origin_s


@dataclass(frozen=True, eq=False)
class PreparedTrace:
    """A part of a trace, on a clock that starts at its first submission, and the jobs that count."""

    trace: Trace
    counted: Bools
    running_first: int  # jobs that ran when the window began, and are simulated from there on
    waiting_first: int  # jobs that waited then

    @property
    def jobs(self) -> Jobs:
        """All jobs, counted or not."""
        return self.trace.jobs

    @property
    def counted_span_s(self) -> tuple[float, float]:
        """First and last submission of the jobs that count."""
        submit_s = self.jobs.submit_s[self.counted]
        return float(submit_s.min()), float(submit_s.max())


def prepare_trace(trace: Trace, window: Window, load: float = 1.0) -> PreparedTrace:
    """Return the jobs of *window*, with times between submissions divided by *load*.

    Jobs that ran when the window began, as recorded, arrive at its beginning with the rest of their work,
    those that waited then arrive right after them with all of it; neither are counted. At another load
    than 1 the recorded times are left out, because they belong to the recorded load.
    """
    if not 0 < load < math.inf:
        raise ConfigError(f"load must be above 0 and finite, got {load}")
    cut, initial, running = _cut(trace, window)
    jobs, recorded = cut.jobs, cut.recorded
    if load != 1.0:
        submit_s = jobs.submit_s / load
        jobs = replace(jobs, submit_s=submit_s, deadline_s=jobs.deadline_s + (submit_s - jobs.submit_s))
        if recorded is not None:
            unknown = np.full(len(jobs), np.nan)
            recorded = replace(recorded, start_s=unknown, end_s=unknown)
    last_s = float(jobs.submit_s.max(initial=0.0))
    counted = (jobs.submit_s >= window.warmup_s) & (jobs.submit_s <= last_s - window.cooldown_s) & ~initial
    if not counted.any():
        raise ConfigError(
            f"no job counts: the window has {len(jobs):,} jobs in {last_s:g} s, of which warm-up"
            f" ({window.warmup_s:g} s) and cool-down ({window.cooldown_s:g} s) leave none"
        )
    return PreparedTrace(
        replace(cut, jobs=jobs, recorded=recorded),
        counted,
        int(running.sum()),
        int((initial & ~running).sum()),
    )


def _cut(trace: Trace, window: Window) -> tuple[Trace, Bools, Bools]:
    """Return the jobs of *window* on its own clock, and masks of the initial and the running ones."""
    nothing = np.zeros(len(trace.jobs), dtype=np.bool_)
    if window.from_s == 0 and window.to_s == math.inf:
        return trace, nothing, nothing
    jobs, recorded, begin_s = trace.jobs, trace.recorded, window.from_s
    inside = (jobs.submit_s >= begin_s) & (jobs.submit_s < window.to_s)
    running, waiting = nothing, nothing
    left_s: Floats = jobs.duration_s
    if recorded is not None:
        before = jobs.submit_s < begin_s
        running = before & (recorded.start_s < begin_s) & (recorded.end_s > begin_s)
        waiting = before & (recorded.start_s >= begin_s)
        left_s = np.where(running, recorded.end_s - begin_s, left_s)
    rows = np.concatenate([np.flatnonzero(mask) for mask in (running, waiting, inside)])
    if not inside.any():
        raise ConfigError(
            f"no job was submitted from {window.from_s:g} to {window.to_s:g} s after the first submission,"
            f" expected a time before {float(jobs.submit_s.max(initial=0.0)):g} s"
        )
    part = trace.take(rows)
    submit_s = np.maximum(part.jobs.submit_s - begin_s, 0.0)
    moved = replace(
        part.jobs,
        submit_s=submit_s,
        deadline_s=part.jobs.deadline_s - begin_s,
        steps=np.where(running[rows], left_s[rows] / part.jobs.step_s, part.jobs.steps),
    )
    cut_recorded = None if part.recorded is None else part.recorded.shift(-begin_s)
    origin_s = None if part.origin_s is None else part.origin_s + begin_s
    cut = replace(part, jobs=moved, recorded=cut_recorded, origin_s=origin_s)
    return cut, (running | waiting)[rows], running[rows]
