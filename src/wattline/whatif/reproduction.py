"""Our reproduction of a recorded schedule: candidates, what is learnt from its first half, and the error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.table import Bools, Floats, Ints
from wattline.reports.summary import finite_or_none
from wattline.trace import Trace
from wattline.trace.recorded import RecordedSchedule
from wattline.whatif.digest import Blocks
from wattline.whatif.intervals import count_held_at, digest_intervals

_LEAST_JOBS = 20  # in each half
_LEAST_FREE = 10  # jobs that found room, to measure how long a start takes
_BACKFILLS = ("none", "easy", "greedy")


@dataclass(frozen=True)
class Candidate:
    """A scheduler that may have made the recorded schedule."""

    policy: str
    backfill: str
    by_partition: bool = False  # jobs have the priority that was learnt of their partition and QOS

    def __str__(self) -> str:
        name = "priority by partition" if self.by_partition else self.policy.removesuffix("+keep")
        return f"{name}, {self.backfill} backfill"


@dataclass(frozen=True)
class ReproductionError:
    """Distance of a reproduction from the recorded schedule, of one part of the jobs and its time.

    *order* is the share of pairs of jobs that start in the other order, (1 - Kendall's tau) / 2.
    """

    jobs: int
    wait_recorded_s: float  # mean
    wait_s: float  # mean of the reproduction
    wait_off_s: float  # mean of the absolute difference of each job
    utilisation_recorded: float
    utilisation: float
    order: float

    @property
    def wait_error(self) -> float:
        """Relative error of the mean wait; nan if no job waited."""
        return self.wait_s / self.wait_recorded_s - 1 if self.wait_recorded_s > 0 else math.nan

    @property
    def utilisation_error(self) -> float:
        """Relative error of the utilisation."""
        known = self.utilisation_recorded > 0
        return self.utilisation / self.utilisation_recorded - 1 if known else math.nan

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        more = {"wait_error": self.wait_error, "utilisation_error": self.utilisation_error}
        return {name: finite_or_none(value) for name, value in (asdict(self) | more).items()}


def has_enough_records(trace: Trace) -> bool:
    """Return whether *trace* records start and end of enough jobs to calibrate and to test."""
    recorded = trace.recorded
    if recorded is None:
        return False
    return int((np.isfinite(recorded.start_s) & np.isfinite(recorded.end_s)).sum()) >= 2 * _LEAST_JOBS


def list_candidates(trace: Trace) -> tuple[Candidate, ...]:
    """Return the schedulers to try; priority and fair share only where the records name what they need."""
    found = [Candidate("fifo", backfill) for backfill in _BACKFILLS]
    recorded = trace.recorded
    if recorded is not None and len(np.unique(_classify(recorded))) > 1:
        found += [Candidate("priority+keep", backfill, True) for backfill in _BACKFILLS[1:]]
    jobs = trace.jobs
    if len(np.unique(jobs.user.codes)) > 1 or len(np.unique(jobs.team.codes)) > 1:
        found.append(Candidate("fifo+fairshare", "easy"))
    return tuple(found)


def split_halves(jobs: Jobs, counted: Bools) -> tuple[Bools, Bools]:
    """Return masks of the counted jobs submitted in the first and in the second half, of equal numbers."""
    rows = np.flatnonzero(counted)
    first, second = (np.zeros(len(jobs), dtype=np.bool_) for _ in range(2))
    first[rows[: len(rows) // 2]] = True
    second[rows[len(rows) // 2 :]] = True
    return first, second


def measure_start_delay_s(jobs: Jobs, recorded: RecordedSchedule, rows: Bools, gpus: int) -> float:
    """Return the usual time from the moment at which a job could start to its start, of the jobs in *rows*.

    That is the wait of jobs that found no job waiting and enough of the cluster's *gpus* free when they were
    submitted. If there are fewer than ten of them, it is the time from the last end of another job to a
    start. The median counts: jobs that waited for something else (a dependency, a hold) are no rule.
    """
    known = np.isfinite(recorded.start_s) & np.isfinite(recorded.end_s)
    if not (rows & known).any():
        return 0.0
    submit_s, start_s = jobs.submit_s, recorded.start_s
    before = np.searchsorted(np.sort(submit_s[known]), submit_s, side="left")
    waiting = before - np.searchsorted(np.sort(start_s[known]), submit_s, side="left")
    free = rows & known & (waiting <= 0)
    free &= count_held_at(jobs, start_s, recorded.end_s, submit_s) + jobs.gpus <= gpus
    if int(free.sum()) >= _LEAST_FREE:
        return max(0.0, float(np.median((start_s - submit_s)[free])))
    ends_s, since_s = np.sort(recorded.end_s[known]), submit_s[rows & known]
    starts_s = start_s[rows & known]
    place = np.searchsorted(ends_s, starts_s, side="right") - 1
    last_end_s = np.where(place >= 0, ends_s[np.maximum(place, 0)], -np.inf)
    return max(0.0, float(np.median(starts_s - np.maximum(since_s, last_end_s))))


def learn_priorities(jobs: Jobs, recorded: RecordedSchedule, rows: Bools) -> Floats:
    """Return a priority for each job: partitions and QOS that waited less in *rows* have the higher one.

    Waits are compared by their mean; one that has no job in *rows* comes last.
    """
    group = _classify(recorded)
    wait_s = recorded.start_s - jobs.submit_s
    known = rows & np.isfinite(wait_s)
    count = np.bincount(group[known], minlength=int(group.max(initial=0)) + 1)
    total_s = np.bincount(group[known], wait_s[known], len(count))
    mean_s = np.where(count > 0, total_s / np.maximum(count, 1), np.inf)
    rank = np.argsort(np.argsort(-mean_s, kind="stable"), kind="stable")
    return rank[group].astype(np.float64)


def _classify(recorded: RecordedSchedule) -> Ints:
    """Return a number for each distinct pair of partition and QOS."""
    return np.asarray(recorded.partition.codes * len(recorded.qos.names) + recorded.qos.codes)


def measure_error(
    jobs: Jobs,
    recorded: RecordedSchedule,
    start_s: Floats,
    end_s: Floats,
    rows: Bools,
    nodes: Nodes,
) -> ReproductionError:
    """Compare a reproduced schedule with the recorded one, of the jobs in *rows*.

    Utilisation is that of the time from the first of their submissions to the last recorded start.
    """
    both = rows & np.isfinite(recorded.start_s) & np.isfinite(recorded.end_s) & np.isfinite(start_s)
    was_s, now_s = (np.maximum(each[both] - jobs.submit_s[both], 0.0) for each in (recorded.start_s, start_s))
    if not len(was_s):
        return ReproductionError(0, *(math.nan,) * 6)
    from_s, to_s = float(jobs.submit_s[both].min()), float(recorded.start_s[both].max())
    blocks = Blocks((from_s,), "")
    held = [
        float(digest_intervals(jobs, *times, nodes, blocks, to_s).gpu_s.sum())
        for times in ((recorded.start_s, recorded.end_s), (start_s, end_s))
    ]
    space = max(float(nodes.gpus.sum()) * (to_s - from_s), 1e-9)
    return ReproductionError(
        jobs=len(was_s),
        wait_recorded_s=float(was_s.mean()),
        wait_s=float(now_s.mean()),
        wait_off_s=float(np.abs(now_s - was_s).mean()),
        utilisation_recorded=held[0] / space,
        utilisation=held[1] / space,
        order=count_discordant_pairs(recorded.start_s[both], start_s[both]),
    )


def average_errors(errors: Sequence[ReproductionError]) -> ReproductionError:
    """Return the mean of every figure over several simulations of the same jobs."""
    figures = {
        f.name: float(np.mean([getattr(e, f.name) for e in errors])) for f in fields(ReproductionError)
    }
    values: dict[str, Any] = figures | {"jobs": errors[0].jobs}
    return ReproductionError(**values)


def count_discordant_pairs(one: Floats, other: Floats) -> float:
    """Return the share of pairs that *one* and *other* put in another order; pairs that tie in either do not
    count. 0 for fewer than two values."""
    if len(one) < 2:
        return 0.0
    from scipy.stats import kendalltau

    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float((1 - kendalltau(one, other, method="asymptotic").statistic) / 2)


def score(error: ReproductionError, mean_jct_s: float) -> float:
    """Return how badly a candidate fits: the errors of waits in mean JCTs, of utilisation, and of order."""
    if not error.jobs:
        return math.inf
    scale_s = max(mean_jct_s, 1e-9)
    waits = (error.wait_off_s + abs(error.wait_s - error.wait_recorded_s)) / scale_s
    return waits + abs(error.utilisation - error.utilisation_recorded) + error.order
