"""Dependencies of recorded jobs: `afterok:12:13,after:14+5`, `singleton`, as sbatch has them.

A comma means all, a question mark any of them. Jobs that are not in the trace count as ended as required,
because Slurm forgets them, too. How a job ended is as recorded, whatever the simulated policy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints, Labels
from wattline.trace.recorded import RecordedSchedule
from wattline.units import pluralize

AFTER, AFTERANY, AFTEROK, AFTERNOTOK = range(4)
_KINDS = {
    "after": AFTER,
    "afterany": AFTERANY,
    "afterok": AFTEROK,
    "aftercorr": AFTEROK,  # tasks of an array wait for the whole array: the trace does not pair them
    "afternotok": AFTERNOTOK,
}
_SUCCEEDED = frozenset(("", "completed", "pass", "passed", "succeeded", "success", "terminated", "finished"))
_WAITS, _NEVER = REASONS.index(Reason.DEPENDENCY), REASONS.index(Reason.DEPENDENCY_NEVER)
_PENDING, _IMPOSSIBLE, _MET = 0, -1, 1


class DependencyItem(NamedTuple):
    """One condition: its kind, the job id that it names, and minutes after the start as seconds."""

    kind: int
    job: str
    delay_s: float


class ParsedDependency(NamedTuple):
    """The conditions of a job. *unknown*: words that are no condition of sbatch."""

    items: tuple[DependencyItem, ...]
    any_of: bool
    singleton: bool
    unknown: tuple[str, ...]


def parse_dependency(text: str) -> ParsedDependency:
    """Parse the argument of `sbatch --dependency`, or the column %E of squeue."""
    plain = re.sub(r"\([^)]*\)", "", text.strip())
    items: list[DependencyItem] = []
    unknown: list[str] = []
    singleton = False
    for part in re.split(r"[,?]", plain):
        word, *ids = part.strip().split(":")
        if word.casefold() == "singleton":
            singleton = True
        elif word.casefold() in _KINDS and ids:
            for name in ids:
                job, _, minutes = name.partition("+")
                delay_s = 60.0 * int(minutes) if minutes.isdecimal() else 0.0
                items.append(DependencyItem(_KINDS[word.casefold()], job.removesuffix("_*"), delay_s))
        elif part.strip():
            unknown.append(part.strip())
    return ParsedDependency(tuple(items), "?" in plain, singleton, tuple(unknown))


@dataclass(frozen=True, eq=False)
class Dependencies:
    """Conditions of all jobs: those of job i are `first[i]` to `first[i + 1]` of the other columns."""

    first: Ints
    kind: Ints
    target: Ints  # row of a job
    delay_s: Floats
    any_of: Bools  # by job
    single: Ints  # by job: number of its user and name if it is a singleton, -1: it is none
    same: Ints  # by job: number of its user and name
    succeeded: Bools  # by job, as recorded
    notes: tuple[str, ...]

    @property
    def waiting_jobs(self) -> Bools:
        """Mask of the jobs that have a condition."""
        return np.asarray((np.diff(self.first) > 0) | (self.single >= 0))

    def find_blocked(self, snapshot: Snapshot) -> tuple[Ints, float] | None:
        """Return the reason of each row of the queue that must wait, and when a delay is over.

        0: it may start. None: no row has a condition.
        """
        queue, job = snapshot.queue, snapshot.queue.job
        rows = np.flatnonzero(self._has[job] & ~queue.running)
        if not len(rows):
            return None
        reason, next_s = np.zeros(len(queue), dtype=np.int64), math.inf
        counts = (self.first[job[rows] + 1] - self.first[job[rows]]).astype(np.int64)
        some = rows[counts > 0]
        if len(some):
            state, next_s = self._evaluate(snapshot, some, counts[counts > 0])
            reason[some[state == _PENDING]] = _WAITS
            reason[some[state == _IMPOSSIBLE]] = _NEVER
        single = rows[self.single[job[rows]] >= 0]
        if len(single):
            same = self.same[job]
            _, earliest = np.unique(same, return_index=True)  # the queue is in order of submission
            is_first = np.zeros(len(queue), dtype=np.bool_)
            is_first[earliest] = True
            late = single[~is_first[single]]
            reason[late[reason[late] == 0]] = _WAITS
        return reason, next_s

    @property
    def _has(self) -> Bools:
        return self.waiting_jobs

    def _evaluate(self, snapshot: Snapshot, rows: Ints, counts: Ints) -> tuple[Ints, float]:
        """Return for each of *rows*, which have *counts* conditions, if they are met, and the next delay."""
        queue, now_s = snapshot.queue, snapshot.now_s
        begins = np.concatenate(([0], np.cumsum(counts)[:-1]))
        edges = np.repeat(self.first[queue.job[rows]] - begins, counts) + np.arange(int(counts.sum()))
        target, kind = self.target[edges], self.kind[edges]
        at = np.minimum(np.searchsorted(queue.job, target), len(queue) - 1)
        queued = queue.job[at] == target
        ended = ~queued & (snapshot.jobs.submit_s[target] <= now_s)
        due_s = np.where(queued, queue.first_start_s[at], math.nan) + self.delay_s[edges]
        with np.errstate(invalid="ignore"):
            started = ended | (due_s <= now_s)
            later = (kind == AFTER) & ~started & (due_s > now_s)
        right = self.succeeded[target] == (kind == AFTEROK)
        state = np.where(ended, np.where((kind == AFTERANY) | right, _MET, _IMPOSSIBLE), _PENDING)
        state = np.where(kind == AFTER, np.where(started, _MET, _PENDING), state)
        lowest = np.where(state == _IMPOSSIBLE, -1, np.where(state == _PENDING, 0, 1))
        # All: one that is impossible counts most. Any: one that is met.
        all_of = np.minimum.reduceat(lowest, begins)
        any_of = np.maximum.reduceat(lowest, begins)
        found = np.where(self.any_of[queue.job[rows]], any_of, all_of)
        return found, float(due_s[later].min(initial=math.inf))


def has_dependencies(recorded: RecordedSchedule | None) -> bool:
    """Return whether at least one job has a recorded dependency."""
    return recorded is not None and any(recorded.dependency.names)


def bind_dependencies(jobs: Jobs, recorded: RecordedSchedule | None) -> Dependencies | None:
    """Return the recorded dependencies of *jobs*; None: there are none."""
    if recorded is None or not any(recorded.dependency.names):
        return None
    parsed = [parse_dependency(text) for text in recorded.dependency.names]
    rows_by_id = _index_ids(jobs, recorded)
    first, kind, target, delay_s = [0], list[int](), list[int](), list[float]()
    any_of = np.zeros(len(jobs), dtype=np.bool_)
    is_single = np.zeros(len(jobs), dtype=np.bool_)
    missing = unknown = whole_array = 0
    for row, code in enumerate(recorded.dependency.codes.tolist()):
        one = parsed[code]
        any_of[row], is_single[row] = one.any_of, one.singleton
        unknown += bool(one.unknown)
        for item in one.items:
            rows = rows_by_id.get(item.job)
            if rows is None and "_" in item.job:
                rows = rows_by_id.get(item.job.partition("_")[0])
                whole_array += rows is not None
            missing += rows is None
            for other in rows or ():
                if other != row:
                    kind.append(item.kind)
                    target.append(other)
                    delay_s.append(item.delay_s)
        first.append(len(target))
    same = _number_owners(jobs, recorded)
    has = int(((np.diff(first) > 0) | is_single).sum())
    notes = (
        [f"{pluralize(has, 'job')} wait{'s' if has == 1 else ''} for others, as dependencies say"]
        if has
        else []
    )
    for count, what in (
        (missing, "name jobs that are not in the trace, and count as met"),
        (whole_array, "name one task of an array, and wait for the whole array"),
        (unknown, "have words that sbatch does not know, which are ignored"),
    ):
        if count:
            notes.append(f"{count} dependencies {what}")
    return Dependencies(
        first=np.array(first, dtype=np.int64),
        kind=np.array(kind, dtype=np.int64),
        target=np.array(target, dtype=np.int64),
        delay_s=np.array(delay_s),
        any_of=any_of,
        single=np.where(is_single, same, -1),
        same=same,
        succeeded=_find_succeeded(jobs.status),
        notes=tuple(notes),
    )


def find_never(dependencies: Dependencies, never: Ints) -> Ints:
    """Return *never*, the reason of each job that never starts, with the jobs that depend on such a job."""
    found = never.copy()
    for row in np.flatnonzero(np.diff(dependencies.first) > 0).tolist():  # jobs depend on earlier ones
        first, last = dependencies.first[row : row + 2].tolist()
        stuck = found[dependencies.target[first:last]] > 0
        if found[row] == 0 and (stuck.all() if dependencies.any_of[row] else stuck.any()):
            found[row] = _NEVER
    return found


def _index_ids(jobs: Jobs, recorded: RecordedSchedule) -> dict[str, Sequence[int]]:
    """Return the rows of each job id, and of each array."""
    found: dict[str, Sequence[int]] = {}
    arrays: dict[str, list[int]] = {}
    for row, code in enumerate(recorded.array.codes.tolist()):
        if name := recorded.array.names[code]:
            arrays.setdefault(name, []).append(row)
    found.update(arrays)
    for row, name in enumerate(jobs.id.tolist()):
        found.setdefault(str(name).rpartition("/")[2], (row,))
    return found


def _number_owners(jobs: Jobs, recorded: RecordedSchedule) -> Ints:
    """Return a number for each pair of user and job name."""
    pairs = jobs.user.codes.astype(np.int64) * (len(recorded.name.names) + 1) + recorded.name.codes
    numbers: Ints = np.unique(pairs, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return numbers


def _find_succeeded(status: Labels) -> Bools:
    """Return which jobs ended well, as recorded; unknown ends count as that."""
    good = np.array([name.casefold() in _SUCCEEDED for name in status.names], dtype=np.bool_)
    return np.asarray(good[status.codes])
