"""What became of each job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.actions import START
from wattline.core.events import ARRIVED, FAILED, FINISHED
from wattline.core.table import Bools, Floats, Ints, Table
from wattline.loop.runlog import Log
from wattline.reports.data.lease_intervals import Spans


@dataclass(frozen=True, eq=False)
class Fates(Table):
    """One row per job that arrived, in order of submission."""

    job: Ints  # row in `Log.jobs`
    submit_s: Floats
    first_s: Floats  # when it first started; nan: never
    end_s: Floats  # when it finished or failed for good; nan: neither
    service_s: Floats  # how long it held GPUs
    starts: Ints
    finished: Bools
    failed: Bools
    gpus: Ints  # as asked
    duration_s: Floats  # as asked
    deadline_s: Floats
    late_per_h: Floats

    @property
    def jct_s(self) -> Floats:
        """From submission to end."""
        return np.asarray(self.end_s - self.submit_s)


def fates(log: Log, held: Spans) -> Fates:
    """What became of the jobs in *log*, who held what `spans` says."""
    count = len(log.jobs)
    verb, who, at_s = log.events[:, 0], log.events[:, 1].astype(np.int64), log.events[:, 2]
    arrived = np.zeros(count, dtype=np.bool_)
    arrived[who[verb == ARRIVED]] = True
    finished, failed = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    finished[who[verb == FINISHED]] = True
    failed[who[verb == FAILED]] = True
    end_s = np.full(count, np.nan)
    ends = (verb == FINISHED) | (verb == FAILED)
    end_s[who[ends]] = at_s[ends]
    started, started_s = _starts(log)
    first_s = np.full(count, np.nan)
    first_s[started[::-1]] = started_s[::-1]  # the earliest is written last
    once = held.first
    service_s = np.zeros(count)
    np.add.at(service_s, held.job[once], (held.end_s - held.start_s)[once])
    every = Fates(
        job=np.arange(count, dtype=np.int64),
        submit_s=log.jobs.submit_s,
        first_s=first_s,
        end_s=end_s,
        service_s=service_s,
        starts=np.bincount(started, minlength=count),
        finished=finished,
        failed=failed,
        gpus=log.jobs.gpus,
        duration_s=log.jobs.duration_s,
        deadline_s=log.jobs.deadline_s,
        late_per_h=log.jobs.late_per_h,
    )
    return every.take(arrived)


def _starts(log: Log) -> tuple[Ints, Floats]:
    """Job and time of every start; the rows of one that spans nodes follow each other."""
    rows = np.flatnonzero(log.actions[:, 0] == START)
    job, number = log.actions[rows, 1], log.action_round[rows]
    new = np.ones(len(rows), dtype=np.bool_)
    new[1:] = (job[1:] != job[:-1]) | (number[1:] != number[:-1])
    return job[new], log.action_s[rows[new]]
