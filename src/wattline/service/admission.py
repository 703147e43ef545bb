"""Admission of withheld jobs: those that wait for other jobs, or for a place in their sweep.

A withheld job is in the store but not in the backend's queue, so every policy obeys. A thread looks at all
withheld jobs whenever events were written. What it decides follows from the store alone, so nothing is lost
when the service is restarted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wattline.backend.engine.backend import EngineBackend
from wattline.errors import Conflict, NotFound, StoreError
from wattline.jobfile.dependencies import END, Dependency
from wattline.service.states import LIVE_STATES
from wattline.service.storage.events import NewEvent
from wattline.service.storage.store import Store
from wattline.service.store_thread import StoreThread
from wattline.service.submission import record_from_row
from wattline.service.view import WithheldReason

_RETRY_S = 2.0
_REST, _MIN_REST_S, _MAX_REST_S = 4.0, 0.02, 1.0  # pause after a look, as a multiple of its duration
_logger = logging.getLogger(__name__)


class Admission(StoreThread):
    """Hands withheld jobs to the backend when they may start. *lock* is held while jobs are changed."""

    def __init__(
        self, store: Store, backend: EngineBackend, clock: Callable[[], float], lock: threading.Lock
    ) -> None:
        self._backend, self._clock, self._lock = backend, clock, lock
        self._reasons: Mapping[str, WithheldReason] = {}
        super().__init__(store, "wattline-admission")

    def reason(self, job: str) -> WithheldReason | None:
        """Return the reason that a job is withheld, or None if it was not looked at yet."""
        return self._reasons.get(job)

    def _run(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            if self._stopping.is_set():
                return
            began_s = time.monotonic()
            try:
                self.admit()
            except StoreError as error:
                _logger.warning("withheld jobs wait until the state can be written: %s", error.message)
                self._changed.set()
                self._stopping.wait(_RETRY_S)
            rest_s = min(max(_REST * (time.monotonic() - began_s), _MIN_REST_S), _MAX_REST_S)
            self._stopping.wait(rest_s)

    def admit(self) -> None:
        """Admit the jobs that may start, and cancel those that never may."""
        with self._lock:
            withheld = self._store.withheld_jobs()
            if not withheld:
                self._reasons = {}
                return
            states = _DependencyStates(self._store, [one.depends_on for one in withheld])
            places = Counter(self._store.count_admitted({one.sweep for one in withheld if one.max_parallel}))
            admitted: list[str] = []
            never: dict[str, str] = {}
            reasons: dict[str, WithheldReason] = {}
            for one in withheld:
                failed, waiting = states.find(one.depends_on)
                if failed:
                    never[one.id] = failed
                elif waiting:
                    reasons[one.id] = WithheldReason("dependency", waiting)
                elif one.max_parallel and places[one.sweep] >= one.max_parallel:
                    text = f"Its sweep runs at most {one.max_parallel} at once."
                    reasons[one.id] = WithheldReason("max_parallel", text)
                else:
                    places[one.sweep] += 1
                    admitted.append(one.id)
            self._apply(admitted, never)
            self._reasons = reasons

    def _apply(self, admitted: Sequence[str], never: Mapping[str, str]) -> None:
        now_s = self._clock()
        events = [NewEvent(now_s, "admitted", id, {}) for id in admitted]
        for row in self._store.jobs_with_ids(list(never)):
            facts: dict[str, Any] = {
                name: getattr(row, name)
                for name in ("energy_method", "completed_fraction", "service_s", "energy_j")
            }
            data = {"state": "CANCELLED", "message": never[row.id], **facts}
            events.append(NewEvent(now_s, "ended", row.id, data))
        if events:
            self._store.append(*events)
        if admitted:
            rows = self._store.jobs_with_ids(admitted)
            self._backend.submit([record_from_row(row, self._backend.nodes) for row in rows])


class _DependencyStates:
    """States of all jobs and sweeps that withheld jobs depend on."""

    def __init__(self, store: Store, dependencies: Sequence[Sequence[Mapping[str, str]]]) -> None:
        needed = [one for some in dependencies for one in some]
        self._jobs = store.job_states({one["job"] for one in needed if one.get("job")})
        self._sweeps = store.sweep_states({one["sweep"] for one in needed if one.get("sweep")})

    def find(self, dependencies: Sequence[Mapping[str, str]]) -> tuple[str, str]:
        """Return why the dependencies can never be met, and why they are not met yet; empty: they are."""
        waiting = ""
        for one in dependencies:
            id, sweep = one.get("job", ""), one.get("sweep", "")
            name = f"job {id}" if id else f"sweep {sweep}"
            states = [self._jobs.get(id, "")] if id else list(self._sweeps.get(sweep, {}))
            failed = [state for state in states if state not in (*LIVE_STATES, "SUCCEEDED")]
            live = [state for state in states if state in LIVE_STATES]
            if one["when"] != END and failed:
                return _describe_failure(name, failed[0]), ""
            if live and not waiting:
                waiting = f"Waits for {name} to {'end' if one['when'] == END else 'succeed'}."
        return "", waiting


def _describe_failure(name: str, state: str) -> str:
    if name.startswith("sweep"):
        return f"It depends on the success of {name}, of which a job is {state or 'not known any more'}."
    return f"It depends on the success of {name}, which is {state or 'not known any more'}."


def resolve_dependencies(store: Store, dependencies: Sequence[Dependency], user: str) -> list[dict[str, str]]:
    """Return the dependencies with ids in place of names; raise for jobs that do not exist or have failed.

    A name is that of the newest job of *user*.
    """
    resolved = []
    for one in dependencies:
        if one.sweep:
            states = list(store.sweep_states({one.sweep}).get(one.sweep, {}))
            found = {"sweep": one.sweep}
            if not states:
                raise NotFound(
                    f"depends_on is sweep {one.sweep!r}, but there is no such sweep", "wattline queue --all"
                )
        else:
            id = one.job if one.job.isdecimal() else store.newest_job_named(one.job, user)
            state = store.job_state(id) if id else None
            if state is None:
                raise NotFound(f"depends_on is {one.job!r}, but there is no such job", "wattline queue --all")
            states, found = [state], {"job": str(id)}
        failed = [state for state in states if state not in (*LIVE_STATES, "SUCCEEDED")]
        if failed and one.when != END:
            (kind, name), *_ = found.items()
            raise Conflict(
                f"depends_on: {kind} {name} is {failed[0]}, so this job could never start",
                f"to start after any end: depends_on: {{{kind}: {name}, when: end}}",
            )
        resolved.append({**found, "when": one.when})
    return resolved
