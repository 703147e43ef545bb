"""Scheduler loop and job operations.

An epoch is a stretch of the loop under one policy. It starts from the jobs and leases that exist at that
time, so it can be decided again from its own log. A restart of the service, a change of policy or budgets,
and a job table that holds mostly finished jobs start a new epoch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattline.backend.engine.slurm.submission import SlurmOptions
from wattline.core.protocols import Models, Policy
from wattline.core.quotas import Quotas
from wattline.core.usage import Usage
from wattline.energy.budgets import parse_budget
from wattline.errors import NotFound, StoreError
from wattline.jobfile import JobFile
from wattline.loop.run import build_header, iterate
from wattline.loop.runlog import Log
from wattline.placement.parser import parse_placer
from wattline.policy.chain import spell
from wattline.service.admission import Admission
from wattline.service.audit import build_policy_change
from wattline.service.backends import open_backend
from wattline.service.budgeted_policy import bound_caps, build_policy, check_metered
from wattline.service.clock import Clock
from wattline.service.epoch_recorder import EpochRecorder, read_meter_today, read_run_log
from wattline.service.event_feed import EventFeed
from wattline.service.job_actions import JobActions
from wattline.service.live_feed import LiveFeed
from wattline.service.metrics.dcgm_job_files import DcgmJobFiles
from wattline.service.notifications.notifier import Notifier
from wattline.service.power_history import PowerHistory
from wattline.service.retention import Pruner, RetentionThread
from wattline.service.settings import ServiceSettings
from wattline.service.storage.events import NewEvent
from wattline.service.storage.projection import JobRow
from wattline.service.storage.store import Store
from wattline.service.submission import record_from_row
from wattline.service.submitter import Submitter
from wattline.service.view import ControllerView
from wattline.service.whatif_runs import WhatIfRuns

DEFAULT_PLACER = "tune"

_SPARE_ROWS = 4096  # rows of finished jobs that the table may hold before a new epoch
_RETRY_S = 2.0

_logger = logging.getLogger(__name__)


class Controller:
    """The scheduler of one folder: runs the loop in a thread, and changes jobs on request.

    Other threads read its state through `view`, `live_status` and the store.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        gpus: str = "auto",
        policy: str = "auto",
        place: str = DEFAULT_PLACER,
        models: Models | None = None,
        seed: int = 0,
        clock: Callable[[], float] | None = None,
        settings: ServiceSettings | None = None,
        slurm: SlurmOptions | None = None,
    ) -> None:
        self.folder, self.settings = Path(folder).resolve(), settings or ServiceSettings()
        self._seed, self._policy_text = seed, policy
        self.store = Store.open(self.folder)
        try:
            self.clock = Clock(self.store.last_event_s()) if clock is None else clock
            budgets = tuple(self.store.setting("budgets") or ())
            quotas = Quotas.from_list(self.store.setting("quotas") or ())
            parsed_policy = self._parse_policy(budgets, self.store.setting("overshoot"), quotas)
            placer = parse_placer(place)
            library = _load_library() if models is None else models
            self.backend = open_backend(
                self.folder,
                gpus,
                slurm,
                clock=self.clock,
                on_event=self._on_event,
                on_power=lambda at_s, readings: self._power_history.record(at_s, readings),
                event_batch=self._collect_events,
            )
        except BaseException:
            self.store.close()
            raise
        self._view = ControllerView(
            clock=self.clock,
            nodes=self.backend.nodes,
            simulated=self.backend.simulated,
            energy_method=str(self.backend.describe()["energy"]),
            models=library,
            cap_ranges_w=self.backend.engine.cap_ranges_w(),
            placer=placer,
            policy=parsed_policy,
            budgets=budgets,
            quotas=quotas,
            epoch=self.store.last_epoch(),
        )
        self._power_history: PowerHistory = PowerHistory(self.store, self.backend.nodes)
        self._lock = threading.Lock()  # guards the view
        self._settings_lock = threading.Lock()  # held from reading a setting to the end of its change
        self._events: list[NewEvent] | None = None  # of the loop, to be written together; None: at once
        self.actions = JobActions(self.store, self.backend, self.clock)
        self._admission = Admission(self.store, self.backend, self.clock, self.actions.lock)
        self._update_view(withheld_reason=self._admission.reason, engine_reason=self.backend.wait_reason)
        self._submitter = Submitter(self.store, self.backend, self.view, self.settings.webhooks)
        self._stopping = threading.Event()
        self.feed = EventFeed(self.store)
        self.live = LiveFeed(self.store)
        self.whatif = WhatIfRuns(self.folder, self.clock)
        self.retention = self.settings.retention
        self.pruner = Pruner(self.store, self.folder, self.clock)
        self._retention_thread = RetentionThread(self.pruner, self.retention, self.feed.forget_history)
        self._reset_meter = threading.Event()
        self.backend.limit_caps(bound_caps(parsed_policy, budgets))
        self._dcgm_files: DcgmJobFiles | None = None
        if mapping := self.settings.metrics.dcgm_job_mapping:
            self._dcgm_files = DcgmJobFiles(self.store, mapping)
        self.notifier: Notifier | None = None
        if self.settings.webhooks.allow:
            self.notifier = Notifier(self.store, self.folder, self.settings.webhooks, self.clock, self.view)
        self._thread = threading.Thread(target=self._run, name="wattline-loop", daemon=True)

    # -- start and stop

    def start(self) -> None:
        """Adopt the jobs that exist, and start the loop."""
        live = self.store.live_jobs()
        nodes = self.backend.nodes
        queued = [job for job in live if job.state == "RUNNING" or not (job.held or job.withheld)]
        self.backend.adopt([record_from_row(job, nodes) for job in queued])
        self.backend.restore_energy(self.store.meter_totals())
        self.backend.cancel(*(job.id for job in live if job.cancelled))
        started = NewEvent(self.clock(), "service", None, {"event": "started", "jobs": len(live)})
        self._append(started, *build_policy_change(self.store, self._policy_text, self.clock()))
        self._thread.start()
        self._admission.start()
        self._retention_thread.start()
        if self._dcgm_files is not None:
            self._dcgm_files.start()
        if self.notifier is not None:
            self.notifier.start()

    def stop(self) -> None:
        """Stop the loop. Jobs run on, and the next process that serves this folder adopts them."""
        self._stopping.set()
        self.close_streams()
        self.whatif.close()
        self.backend.interrupt()
        self._admission.stop()
        self._retention_thread.stop()
        if self._dcgm_files is not None:
            self._dcgm_files.stop()
        if self.notifier is not None:
            self.notifier.stop()
        try:
            if self._thread.ident is not None:
                self._thread.join()
            self.backend.close()
        finally:
            self.store.close()

    def close_streams(self) -> None:
        """Ask all server-sent event streams to end."""
        self.feed.close()
        self.live.close()

    # -- state for other threads

    def view(self) -> ControllerView:
        """Return the scheduler's state after its last decision."""
        with self._lock:
            return self._view

    def _update_view(self, **changes: Any) -> None:
        with self._lock:
            self._view = replace(self._view, **changes)

    def live_status(self, job: str) -> dict[str, Any]:
        """Return progress, energy and allocation of a running job; empty: it does not run."""
        return self.backend.describe_job(job)

    @property
    def problem(self) -> str:
        """The error that keeps the service from deciding or writing; empty: none."""
        return self.view().problem or self.store.problem or self.backend.engine.problem

    @property
    def streams_closed(self) -> bool:
        """True once server-sent event streams have to end."""
        return self.feed.is_closed

    def describe(self) -> dict[str, Any]:
        """Return the cluster, the policy, and the state of the loop, as `GET /cluster` shows them."""
        view = self.view()
        nodes, step = view.nodes, view.step
        return {
            "nodes": [
                {"name": str(nodes.name[n]), "kind": nodes.kind.word(n), "gpus": int(nodes.gpus[n])}
                for n in range(len(nodes))
            ],
            "simulated": view.simulated,
            "gpus_free": None if step is None else int(step.state.free_gpus.sum()),
            "energy_method": view.energy_method,
            "policy": spell(view.policy),
            "place": spell(view.placer),
            "budgets": list(view.budgets),
            "overshoot": view.overshoot,
            "epoch": view.epoch,
            "jobs": self.store.count_by_state(),
            "decision_s": view.decision_s,
            "problem": self.problem,
        }

    def run_log(self, epoch: int | None = None) -> list[str]:
        """Return the lines of an epoch's run log; None: of the current epoch."""
        return read_run_log(self.store, self.view().epoch if epoch is None else epoch)

    # -- the loop thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run_epoch()
                self._update_view(problem="")
            except Exception as error:  # a failing policy or disk must not end the service
                problem = f"{type(error).__name__}: {error}"
                self._update_view(problem=problem)
                _logger.exception("the scheduler loop failed and is restarted in %g s: %s", _RETRY_S, problem)
                self._stopping.wait(_RETRY_S)

    def _run_epoch(self) -> None:
        if self._reset_meter.is_set():
            self.backend.reset_energy()
            self._reset_meter.clear()
        backend = self.backend
        initial_state = backend.initial_state(self._seed)
        meter = read_meter_today(self.store, tuple(backend.jobs.team.names), self.clock())
        usage = Usage.from_rows(self.store.usage_rows(initial_state.now_s), initial_state.now_s)
        initial_state = replace(initial_state, meter=meter, usage=usage, quotas=self.view().quotas)
        self._update_view(epoch=self.view().epoch + 1, usage=usage)
        view = self.view()
        about = build_header(
            backend,
            view.policy,
            view.models,
            view.placer,
            self._seed,
            {"epoch": view.epoch},
            None,
            initial_state,
            initial_state.quotas,
        )
        recorder = EpochRecorder(
            self.store, view.epoch, Log(about, backend.jobs, backend.nodes), self._write_until_stored
        )
        recorder.record_start(initial_state, self.clock())
        steps = iterate(backend, view.policy, view.models, view.placer, initial_state)
        for number, step in enumerate(steps, 1):
            self._update_view(step=step, decision_s=backend.seconds_since_wait())
            recorder.record_step(number, step, backend.jobs)
            self._update_view(problem="")
            if self._stopping.is_set() or len(backend.jobs) > 4 * len(step.state.queue) + _SPARE_ROWS:
                return

    def _write_until_stored(self, write: Callable[[], object]) -> None:
        """Call *write* until it succeeds. The loop waits meanwhile, so nothing new starts."""
        logged = False
        while True:
            try:
                write()
                return
            except StoreError as error:
                if self._stopping.is_set():
                    return  # the folders of the jobs hold the same facts
                self._update_view(problem=error.message)
                if not logged:
                    _logger.error("%s; no job starts until the state can be written", error.message)
                    logged = True
                time.sleep(_RETRY_S)

    def _append(self, *events: NewEvent) -> None:
        self._write_until_stored(lambda: self.store.append(*events))

    def _on_event(self, kind: str, job: str, data: dict[str, Any]) -> None:
        """Store an event of the backend."""
        if kind == "unknown_job":  # the backend was asked to cancel a job that is held, withheld or over
            row = self.store.job(job)
            if row is None or not (row.held or row.withheld) or row.state != "PENDING":
                return
            kind = "ended"
            data = {
                "state": "CANCELLED",
                "message": "It was cancelled.",
                "energy_method": row.energy_method,
                "completed_fraction": row.completed_fraction,
                "service_s": row.service_s,
                "energy_j": row.energy_j,
            }
        event = NewEvent(self.clock(), kind, job, data)
        if self._events is None:
            self._append(event)
        else:
            self._events.append(event)

    @contextmanager
    def _collect_events(self) -> Iterator[None]:
        """Write the events of the loop within the block in one transaction, at its end."""
        self._events = []
        try:
            yield
        finally:
            events, self._events = self._events, None
            if events:
                self._append(*events)

    # -- jobs

    def submit(
        self,
        job: JobFile,
        user: str,
        workdir: str = "/",
        key: str = "",
        held: bool = False,
        allow_unsatisfiable: bool = False,
    ) -> list[JobRow]:
        """Accept a job or a sweep; see `Submitter.submit`."""
        return self._submitter.submit(job, user, workdir, key, held, allow_unsatisfiable)

    def job(self, id: str) -> JobRow:
        """Return one job; raise `NotFound` if no job has that id."""
        row = self.store.job(id)
        if row is None:
            raise NotFound(f"there is no job {id!r}", "wattline queue --all")
        return row

    def cancel(self, id: str, by: str = "") -> JobRow:
        """End a job; *by* is the name of the caller's token."""
        self.actions.change_one("cancel", id, by)
        return self.job(id)

    def hold(self, id: str, by: str = "") -> JobRow:
        """Keep a PENDING job from starting until it is released."""
        self.actions.change_one("hold", id, by)
        return self.job(id)

    def release(self, id: str, by: str = "") -> JobRow:
        """Let a held job start."""
        self.actions.change_one("release", id, by)
        return self.job(id)

    def prioritise(self, id: str, priority: float, by: str = "") -> JobRow:
        """Change the priority of a job; a running job is not preempted by it."""
        self.actions.change_one("priority", id, by, priority)
        return self.job(id)

    # -- budgets and quotas

    def set_budgets(self, texts: Sequence[str], by: str = "", overshoot: float | None = None) -> list[str]:
        """Replace the budgets in force; their energy counts from now. Return the new budgets.

        *overshoot* bounds the sum of power caps, as a multiple of each budget of watts; None: the policy's
        own, else 1.
        """
        budgets = tuple(texts)
        for text in budgets:
            parse_budget(text)
        check_metered(budgets, self.view().energy_method)
        view, now_s = self.view(), self.clock()
        policy = self._parse_policy(budgets, overshoot, view.quotas)  # raises before anything is written
        if view.budgets == budgets:
            if view.policy == policy:
                return list(budgets)
            # Another overshoot only: the energy of the budgets counts on.
            self.store.append(
                NewEvent(now_s, "setting", None, {"name": "overshoot", "value": overshoot, "by": by})
            )
            self._change_policy(policy=policy)
            return list(budgets)
        settings = {"budgets": list(budgets), "budgets_s": now_s, "overshoot": overshoot}
        before = {"budgets": list(view.budgets)}
        self.store.append_and_reset_meter(
            *(
                NewEvent(now_s, "setting", None, {"name": n, "value": v, "before": before.get(n), "by": by})
                for n, v in settings.items()
            )
        )
        self._reset_meter.set()
        self._change_policy(policy=self._parse_policy(budgets, overshoot, view.quotas), budgets=budgets)
        return list(budgets)

    def change_quotas(self, change: Callable[[Quotas], Quotas], by: str = "") -> None:
        """Replace quotas and shares by *change* of those in force."""
        with self._settings_lock:
            view = self.view()
            quotas = change(view.quotas)
            if quotas == view.quotas:
                return
            policy = self._parse_policy(view.budgets, self.store.setting("overshoot"), quotas)
            data = {"value": quotas.as_list(), "before": view.quotas.as_list(), "by": by}
            self.store.append(NewEvent(self.clock(), "setting", None, {"name": "quotas", **data}))
            self._change_policy(policy=policy, quotas=quotas)

    def _change_policy(self, **changes: Any) -> None:
        """Update the view, and start a new epoch under its policy."""
        self._update_view(**changes)
        self.backend.limit_caps(bound_caps(self.view().policy, self.view().budgets))
        self.backend.interrupt()

    def _parse_policy(self, budgets: Sequence[str], overshoot: float | None, quotas: Quotas) -> Policy:
        set_s = float(self.store.setting("budgets_s") or self.clock())
        return build_policy(self._policy_text, budgets, overshoot, set_s, quotas)


def _load_library() -> Models:
    from wattline.models.library import library

    return library()
