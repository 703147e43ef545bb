"""Acceptance of submissions: ids, idempotency keys, and the hand-over to the backend."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from wattline.backend.engine.backend import EngineBackend
from wattline.errors import ConfigError, Conflict
from wattline.jobfile import JobFile
from wattline.service.admission import resolve_dependencies
from wattline.service.notifications.settings import NO_WEBHOOKS, WebhookSettings
from wattline.service.satisfiability import check_satisfiable, limit_request
from wattline.service.storage.events import NewEvent
from wattline.service.storage.projection import JobRow
from wattline.service.storage.store import Store
from wattline.service.submission import Submission, build_submissions, check_own_user, record_from_row
from wattline.service.view import ControllerView


class Submitter:
    """Accepts jobs from any thread: stores them, then hands them to the backend."""

    def __init__(
        self,
        store: Store,
        backend: EngineBackend,
        view: Callable[[], ControllerView],
        webhooks: WebhookSettings = NO_WEBHOOKS,
    ) -> None:
        self._store, self._backend, self._view, self._webhooks = store, backend, view, webhooks
        self._lock = threading.Lock()  # guards the next number and the keys in progress
        self._keys_in_progress: dict[str, threading.Event] = {}
        self._next_number = 1 + store.last_job_number()

    def submit(
        self,
        job: JobFile,
        user: str,
        workdir: str = "/",
        key: str = "",
        held: bool = False,
        allow_unsatisfiable: bool = False,
    ) -> list[JobRow]:
        """Accept a job or a sweep; when this returns it is on the disk.

        A job that the cluster can never run raises `Unsatisfiable`, unless *allow_unsatisfiable* is set.

        A second submission with the same idempotency *key* returns the jobs of the first; with another job
        it raises `Conflict`. An empty key is none.
        """
        key, request_hash = (f"{user}/{key}" if key else ""), _hash_request(job, workdir)
        while key:  # wait for the key first: a look at the store before that may be out of date
            with self._lock:
                in_progress = self._keys_in_progress.get(key)
                if in_progress is None:
                    self._keys_in_progress[key] = threading.Event()
                    break
            in_progress.wait()
        try:
            earlier = self._earlier_submission(key, request_hash) if key else None
            if earlier is not None:
                return earlier
            submissions = self._build_submissions(job, user, workdir)
            if not allow_unsatisfiable:
                check_satisfiable(self._view(), job, submissions[0])
            return self._accept(job, submissions, user, key, request_hash, held)
        finally:
            if key:
                self._keys_in_progress.pop(key).set()

    def _earlier_submission(self, key: str, request_hash: str) -> list[JobRow] | None:
        earlier = self._store.idempotent_submission(key)
        if earlier is None:
            return None
        earlier_hash, ids = earlier
        if earlier_hash != request_hash:
            raise Conflict("this Idempotency-Key was used for another job", "use a new key for each job")
        return [job for id in ids if (job := self._store.job(id)) is not None]

    def _build_submissions(self, job: JobFile, user: str, workdir: str) -> list[Submission]:
        if job.energy.budget_j is not None and self._backend.engine.energy_method == "unmetered":
            raise Conflict(
                f"energy.budget is {job.energy.budget_j:g} J, and the energy of these GPUs is not metered, "
                "so it cannot be enforced",
                "leave out energy.budget",
            )
        if job.notify:
            try:
                self._webhooks.check_url(job.notify, "notify")
            except ConfigError as error:
                raise Conflict(error.message, error.hint) from None
        if job.container_image and self._backend.engine.container_problem:
            raise Conflict(
                f"container.image is {job.container_image!r}, and jobs cannot run in containers: "
                f"{self._backend.engine.container_problem}",
                "install Apptainer, or leave out container",
            )
        if not self._backend.engine.runs_other_users:
            check_own_user(user)
        expected_s = None if job.recurring is None else self._store.mean_service_s(job.recurring.group)
        nodes = self._backend.nodes
        return [
            replace(one, columns=limit_request(one.columns, nodes))
            for one in build_submissions(job, user, workdir, expected_s)
        ]

    def _accept(
        self,
        job: JobFile,
        submissions: Sequence[Submission],
        user: str,
        key: str,
        request_hash: str,
        held: bool,
    ) -> list[JobRow]:
        depends_on = resolve_dependencies(self._store, job.dependencies, user)
        withheld = bool(depends_on or job.max_parallel)
        with self._lock:
            first, self._next_number = self._next_number, self._next_number + len(submissions)
        last = first + len(submissions) - 1
        ids = [str(number) for number in range(first, last + 1)]
        now_s = self._view().clock()
        sweep = ids[0] if len(ids) > 1 else ""
        events = [
            NewEvent(
                now_s,
                "accepted",
                id,
                {
                    "name": one.name,
                    "user": user,
                    "team": job.team,
                    "priority": job.priority,
                    "sweep": sweep,
                    "submit_s": now_s,
                    "fuse": one.fuse,
                    "held": held,
                    "withheld": withheld,
                    "matrix": one.matrix,
                    "max_parallel": job.max_parallel or 0,
                    "depends_on": depends_on,
                    "submission": {
                        "spec": one.spec,
                        "columns": one.columns,
                        **({"notify": job.notify} if job.notify else {}),
                    },
                },
            )
            for id, one in zip(ids, submissions, strict=True)
        ]
        if key:
            data = {"key": key, "request_hash": request_hash, "jobs": ids}
            events.append(NewEvent(now_s, "idempotency_key", None, data))
        self._store.append(*events)
        accepted = self._store.jobs_numbered(first, last)
        if not (held or withheld):  # `Admission` hands withheld jobs over
            self._backend.submit([record_from_row(one, self._backend.nodes) for one in accepted])
            # A cancellation between the append and the submit reached a backend that did not know the job.
            for id in self._store.cancelled_ids(first, last):
                self._backend.cancel(id)
        return accepted


def _hash_request(job: JobFile, workdir: str) -> str:
    return hashlib.sha256(f"{job.model_dump_json()}\n{workdir}".encode()).hexdigest()
