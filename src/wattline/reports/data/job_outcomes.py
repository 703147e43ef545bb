"""Outcome of each job: start, end, service time, finished or failed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.actions import ACTION_JOB, ACTION_VERB, START
from wattline.core.events import ARRIVED, EVENT_AT_S, EVENT_JOB, EVENT_VERB, FAILED, FINISHED
from wattline.core.table import Bools, Floats, Ints, Table
from wattline.loop.runlog import Log
from wattline.reports.data.lease_intervals import LeaseIntervals


@dataclass(frozen=True, eq=False)
class JobOutcomes(Table):
    """One row per job that arrived, in order of submission."""

    job: Ints  # row in `Log.jobs`
    submit_s: Floats
    first_start_s: Floats  # nan = never started
    end_s: Floats  # time of finish or final failure; nan = neither
    service_s: Floats  # time with GPUs
    start_count: Ints
    finished: Bools
    failed: Bools
    gpus: Ints  # as requested
    duration_s: Floats  # as requested
    deadline_s: Floats
    late_per_h: Floats

    @property
    def jct_s(self) -> Floats:
        """Time from submission to end."""
        return np.asarray(self.end_s - self.submit_s)


def collect_job_outcomes(log: Log, intervals: LeaseIntervals) -> JobOutcomes:
    """Return the outcomes of the jobs in *log*; *intervals* are its leases."""
    count = len(log.jobs)
    verb, at_s = log.events[:, EVENT_VERB], log.events[:, EVENT_AT_S]
    job = log.events[:, EVENT_JOB].astype(np.int64)
    arrived = np.zeros(count, dtype=np.bool_)
    arrived[job[verb == ARRIVED]] = True
    finished, failed = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    finished[job[verb == FINISHED]] = True
    failed[job[verb == FAILED]] = True
    end_s = np.full(count, np.nan)
    ends = (verb == FINISHED) | (verb == FAILED)
    end_s[job[ends]] = at_s[ends]
    started, started_s = _list_starts(log)
    first_start_s = np.full(count, np.nan)
    first_start_s[started[::-1]] = started_s[::-1]  # reversed: the earliest start is written last and stays
    once = intervals.is_first_node
    service_s = np.zeros(count)
    np.add.at(service_s, intervals.job[once], (intervals.end_s - intervals.start_s)[once])
    outcomes = JobOutcomes(
        job=np.arange(count, dtype=np.int64),
        submit_s=log.jobs.submit_s,
        first_start_s=first_start_s,
        end_s=end_s,
        service_s=service_s,
        start_count=np.bincount(started, minlength=count),
        finished=finished,
        failed=failed,
        gpus=log.jobs.gpus,
        duration_s=log.jobs.duration_s,
        deadline_s=log.jobs.deadline_s,
        late_per_h=log.jobs.late_per_h,
    )
    return outcomes.take(arrived)


def _list_starts(log: Log) -> tuple[Ints, Floats]:
    """Return job and time of every start; one on several nodes has adjacent rows and counts once."""
    rows = np.flatnonzero(log.actions[:, ACTION_VERB] == START)
    job, round_number = log.actions[rows, ACTION_JOB], log.action_round[rows]
    new = np.ones(len(rows), dtype=np.bool_)
    new[1:] = (job[1:] != job[:-1]) | (round_number[1:] != round_number[:-1])
    return job[new], log.action_s[rows[new]]
