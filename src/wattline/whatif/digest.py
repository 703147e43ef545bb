"""A schedule, recorded or simulated, reduced to the times of its jobs and its use by block of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.actions import ACTION_VERB, STOP
from wattline.core.table import Floats
from wattline.loop.runlog import Log
from wattline.models.durations.errors import EstimateErrors, measure_errors
from wattline.reports.summary import build_run_tables, compute_report

_BLOCKS = ((604_800.0, "week"), (86_400.0, "day"), (21_600.0, "6 h"), (3600.0, "hour"), (600.0, "10 min"))
_LEAST_BLOCKS = 6


@dataclass(frozen=True)
class Blocks:
    """Edges of the blocks of time that a bootstrap draws from; the last block is open.

    Blocks that are shorter than the jobs and the queue would take dependent days for independent ones, so
    the longest blocks are used of which there are at least six. *name* "": the time is too short for blocks.
    """

    edges_s: tuple[float, ...]
    name: str

    @classmethod
    def between(cls, first_s: float, last_s: float) -> Blocks:
        """Return the blocks of the time between two submissions."""
        for size_s, name in _BLOCKS:
            count = int((last_s - first_s) // size_s)
            if count >= _LEAST_BLOCKS:
                return cls(tuple(first_s + size_s * n for n in range(count)), name)
        return cls((first_s,), "")

    def __len__(self) -> int:
        return len(self.edges_s)

    def number(self, at_s: Floats) -> Floats:
        """Return the block of each time; times before the first belong to the first."""
        return np.maximum(np.searchsorted(np.array(self.edges_s), at_s, side="right") - 1, 0)

    def integrate(self, at_s: Floats, value: Floats, end_s: float) -> Floats:
        """Return the integral of a step function over each block, the last one until *end_s*."""
        if len(at_s) == 0:
            return np.zeros(len(self))
        edges_s = np.array((*self.edges_s, max(end_s, self.edges_s[-1])))
        total = np.concatenate(([0.0], np.cumsum(value[:-1] * np.diff(at_s))))
        return np.diff(np.interp(edges_s, at_s, total))


@dataclass(frozen=True, eq=False)
class ScheduleDigest:
    """Times of every job of a trace under one schedule, and GPU and energy use by block of time.

    Rows are those of the trace; nan where a job did not start or end.
    """

    start_s: Floats
    end_s: Floats
    wait_s: Floats  # all the time without GPUs from submission to end
    gpu_s: Floats  # held GPU time of each block
    energy_j: Floats  # likewise
    until_s: float  # the end of the last block
    energy_method: str
    stops: int = 0
    policy: str = ""  # as the log names it
    estimates: EstimateErrors | None = None


def digest_log(log: Log, blocks: Blocks, until_s: float = np.inf) -> ScheduleDigest:
    """Reduce the log of a run; use counts until *until_s*, or until its end if that is infinite."""
    tables = build_run_tables(log)
    report = compute_report(log, tables)
    count = len(log.jobs)
    start_s, end_s, wait_s = (np.full(count, np.nan) for _ in range(3))
    outcomes = tables.outcomes
    row = outcomes.job
    start_s[row] = outcomes.first_start_s
    end_s[row] = np.where(outcomes.finished, outcomes.end_s, np.nan)
    wait_s[row] = np.where(outcomes.finished, np.maximum(0.0, outcomes.jct_s - outcomes.service_s), np.nan)
    line = tables.timeline
    until_s = min(until_s, float(np.nanmax(np.append(outcomes.end_s, blocks.edges_s[-1]))))
    durations = log.header.get("durations")
    estimates = None
    if durations is not None:
        estimate_s = np.array(durations["estimate_s"], dtype=np.float64)
        estimates = measure_errors(estimate_s, log.jobs.duration_s)
    return ScheduleDigest(
        start_s=start_s,
        end_s=end_s,
        wait_s=wait_s,
        gpu_s=blocks.integrate(line.at_s, line.held, until_s),
        energy_j=blocks.integrate(line.at_s, line.power_w, until_s),
        until_s=until_s,
        energy_method=report.energy_method,
        stops=int((log.actions[:, ACTION_VERB] == STOP).sum()),
        policy=report.policy,
        estimates=estimates,
    )
