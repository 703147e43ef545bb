"""Changes of jobs on request: cancel, hold, release and priority, of one job or of a selection.

A request is one transaction of the store and one message to the backend. It can be repeated: jobs that are
in the requested state already stay as they are. After a crash the next process reads the same events, and
ends the jobs that were to be cancelled.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wattline.backend.engine.backend import EngineBackend
from wattline.errors import Conflict, NotAllowed, NotFound, WattlineError
from wattline.service.states import LIVE_STATES
from wattline.service.storage.events import NewEvent
from wattline.service.storage.selection import JobSelection, SelectedJob
from wattline.service.storage.store import Store
from wattline.service.submission import record_from_row

ACTIONS = ("cancel", "hold", "release", "priority")
_PARTICIPLES = {
    "cancel": "cancelled",
    "hold": "held",
    "release": "released",
    "priority": "given another priority",
}
_ALLOWED_STATES = {
    "cancel": LIVE_STATES,
    "hold": ("PENDING",),
    "release": ("PENDING",),
    "priority": LIVE_STATES,
}


class Refusal(NamedTuple):
    """A selected job that was not changed; *reason* is its state, `not_owner` or `not_found`."""

    job: str
    reason: str
    error: WattlineError


@dataclass(frozen=True)
class ActionResult:
    """Outcome of an action on a selection: ids of the jobs by outcome, in order of their numbers."""

    changed: list[str]
    unchanged: list[str]
    refused: list[Refusal]

    @property
    def reasons(self) -> dict[str, int]:
        """Number of refused jobs by reason."""
        return dict(Counter(one.reason for one in self.refused))


class JobActions:
    """Applies actions to jobs of the store, from any thread."""

    def __init__(self, store: Store, backend: EngineBackend, clock: Callable[[], float]) -> None:
        self._store, self._backend, self._clock = store, backend, clock
        self.lock = threading.Lock()  # held from reading a job to the end of its change

    def change_one(self, action: str, id: str, by: str = "", priority: float = 0.0) -> None:
        """Apply *action* to one job; raise `NotFound`, or `Conflict` if its state does not allow it."""
        with self.lock:
            selected = self._store.select_jobs(JobSelection(jobs=(id,)))
            if not selected:
                raise _build_not_found(id)
            error = _find_conflict(action, selected[0])
            if error is not None:
                raise error
            if not _is_done(action, selected[0], priority):
                self._apply(action, selected, by, priority)
            elif action == "cancel":  # send it again, in case the first message came before the job
                self._backend.cancel(id)

    def change_all(
        self,
        action: str,
        selection: JobSelection,
        *,
        owner: str | None = None,
        by: str = "",
        priority: float = 0.0,
        dry_run: bool = False,
    ) -> ActionResult:
        """Apply *action* to all selected jobs in one transaction, or with *dry_run* only sort them.

        Only jobs of the user *owner* may be changed; None: those of all users. A selection by filters that
        names no user and no states takes the jobs of *owner* that have not ended.
        """
        if selection.is_empty:
            raise Conflict("no jobs are selected, expected jobs, a filter, or all", "all: true")
        if not selection.names_jobs:
            selection = selection.with_defaults(owner, LIVE_STATES)
        with self.lock:
            selected = self._store.select_jobs(selection)
            result, changing = _sort_jobs(action, selected, owner, priority)
            result.refused.extend(self._find_missing(selection, selected))
            if changing and not dry_run:
                self._apply(action, changing, by, priority)
        return result

    def _find_missing(self, selection: JobSelection, selected: Sequence[SelectedJob]) -> list[Refusal]:
        """Return refusals of ids that no job has; raise `NotFound` for a sweep that does not exist."""
        if selection.sweep and not self._store.select_jobs(JobSelection(sweep=selection.sweep)):
            raise NotFound(f"there is no sweep {selection.sweep!r}", "wattline queue --all")
        if not selection.names_jobs:
            return []
        known = {job.id for job in selected}
        missing = [id for id in selection.ids if id not in known]
        return [Refusal(id, "not_found", _build_not_found(id)) for id in missing]

    def _apply(self, action: str, jobs: Sequence[SelectedJob], by: str, priority: float) -> None:
        now_s, ids = self._clock(), [job.id for job in jobs]
        self._store.append(*(_build_event(now_s, action, job, priority, by) for job in jobs))
        if action == "cancel":
            self._backend.cancel(*ids)
        elif action == "hold":
            self._backend.withdraw(*ids)
        elif action == "release":
            free = [job.id for job in jobs if not job.gated]  # `Admission` hands the others over
            rows = self._store.jobs_with_ids(free)
            self._backend.submit([record_from_row(row, self._backend.nodes) for row in rows])
        else:
            queued = [job.id for job in jobs if job.state == "PENDING" and not job.held]
            self._backend.prioritise(priority, *queued)


def _build_event(now_s: float, action: str, job: SelectedJob, priority: float, by: str) -> NewEvent:
    data: dict[str, Any] = {"by": by, **_describe_before(action, job)}
    if action == "cancel":
        return NewEvent(now_s, "cancel", job.id, data)
    if action == "priority":
        return NewEvent(now_s, "priority", job.id, {"priority": priority, **data})
    withheld = {"withheld": True} if action == "release" and job.gated else {}
    return NewEvent(now_s, "hold", job.id, {"held": action == "hold", **withheld, **data})


def _describe_before(action: str, job: SelectedJob) -> dict[str, Any]:
    """Return owner and old value of a job, for the audit log."""
    before = {"cancel": job.state, "priority": job.priority}.get(action)
    return {"owner": job.user} | ({} if before is None else {"before": before})


def _sort_jobs(
    action: str, jobs: Sequence[SelectedJob], owner: str | None, priority: float
) -> tuple[ActionResult, list[SelectedJob]]:
    result, changing = ActionResult([], [], []), []
    for job in jobs:
        error = _find_conflict(action, job)
        if owner is not None and job.user != owner:
            problem = NotAllowed(f"job {job.id} belongs to {job.user or 'the service'}")
            result.refused.append(Refusal(job.id, "not_owner", problem))
        elif _is_done(action, job, priority):
            result.unchanged.append(job.id)
        elif error is not None:
            result.refused.append(Refusal(job.id, job.state, error))
        else:
            changing.append(job)
            result.changed.append(job.id)
    return result, changing


def _is_done(action: str, job: SelectedJob, priority: float) -> bool:
    """Return whether a job is as the action would make it."""
    if action == "cancel":
        return job.state == "CANCELLED" or (job.cancelled and job.state in LIVE_STATES)
    if action == "hold":
        return job.held and job.state == "PENDING"
    if action == "release":
        return job.state == "RUNNING" or (job.state == "PENDING" and not job.held)
    return job.priority == priority and job.state in LIVE_STATES


def _find_conflict(action: str, job: SelectedJob) -> Conflict | None:
    allowed = _ALLOWED_STATES[action]
    if job.state in allowed:
        return None
    hint = f"wattline cancel {job.id}" if job.state == "RUNNING" and action == "hold" else ""
    message = f"job {job.id} is {job.state}; only {' and '.join(allowed)} jobs can be {_PARTICIPLES[action]}"
    return Conflict(message, hint)


def _build_not_found(id: str) -> NotFound:
    return NotFound(f"there is no job {id!r}", "wattline queue --all")
