"""`Backend` for real clusters: jobs come from other threads, an engine runs them, time is the time of day.

The folders of the jobs hold all that is known of their processes (see `folder_layout`), so another process
that opens the same folder adopts the attempts that still run and notices those that have ended.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from wattline.backend.engine.attempt_monitor import CHECK_INTERVAL_S, AttemptMonitor
from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.attempt_table import AttemptTable
from wattline.backend.engine.cap_limits import CapLimits
from wattline.backend.engine.energy_ledger import ALL, EnergyLedger
from wattline.backend.engine.folder_layout import attempt_folders
from wattline.backend.engine.initial_state import build_initial_state, set_lease_starts
from wattline.backend.engine.job_exits import JobExits, OnEvent
from wattline.backend.engine.job_queue import JobQueue
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import AttemptSettings
from wattline.backend.engine.job_status import describe_attempt
from wattline.backend.engine.mailbox import Mailbox
from wattline.backend.engine.node_capacity import NodeCapacity
from wattline.backend.engine.power_samples import OnPower, PowerSampler
from wattline.backend.engine.protocol import Engine
from wattline.backend.engine.recurring_jobs import RecurringJobs
from wattline.core.actions import POWER_OFF, POWER_ON, RETUNE, START, STOP, Actions
from wattline.core.events import (
    METERED,
    NODE_BACK,
    NODE_LOST,
    STOPPED,
    WAKE_EVENTS,
    Event,
    Events,
    build_events,
)
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.snapshot import Snapshot

_REST = 4.0  # pause after a decision, as a multiple of its CPU time
_MIN_REST_S, _MAX_REST_S = 0.02, 1.0

# Without a handler of the application, warnings of a library must not appear on stderr.
logging.getLogger("wattline").addHandler(logging.NullHandler())


class EngineBackend:
    """Runs jobs on an engine; implements `wattline.core.protocols.Backend`.

    Jobs come by `submit`, from any thread; *on_event* receives what happens to them. It is idle when no job
    is left, unless it shall *stay_open*. Events within an *event_batch* may be received together. *on_power*
    receives power samples of all GPUs every 10 s.
    """

    def __init__(
        self,
        root: str | Path,
        engine: Engine,
        *,
        clock: Callable[[], float] = time.time,
        on_event: OnEvent = lambda kind, job, data: None,
        event_batch: Callable[[], AbstractContextManager[None]] = nullcontext,
        on_power: OnPower | None = None,
        stay_open: bool = False,
    ) -> None:
        self.root = Path(root)
        self.engine = engine
        self._on_event, self._event_batch, self._stay_open = on_event, event_batch, stay_open
        self._queue = JobQueue(engine.nodes, clock)
        self._attempts = AttemptTable()
        self._ledger = EnergyLedger()
        self._recurring = RecurringJobs(self.root / "memory.db", engine)
        self._exits = JobExits(engine, self._queue, self._attempts, self._ledger, self._recurring, on_event)
        self._mailbox = Mailbox()
        self._interrupted = False
        self._monitor = AttemptMonitor(self.root, engine, self._queue, self._attempts, self._exits, on_event)
        self._capacity = NodeCapacity(engine, self._queue, self._attempts)
        self._power = PowerSampler(engine, on_power)
        self._caps = CapLimits(engine, self._queue, self._attempts, on_event)
        self._returned_s, self._returned_cpu_s = time.monotonic(), time.thread_time()

    # -- requests, from any thread

    def submit(self, records: Iterable[JobRecord]) -> None:
        """Add jobs to the queue; jobs that are known already are ignored."""
        self._mailbox.post("submit", list(records))

    def cancel(self, *jobs: str) -> None:
        """End jobs: those that wait at once, others after their grace periods at the latest."""
        self._mailbox.post("cancel", jobs)

    def prioritise(self, priority: float, *jobs: str) -> None:
        """Change the priority of waiting jobs."""
        self._mailbox.post("prioritise", (priority, jobs))

    def withdraw(self, *jobs: str) -> None:
        """Remove waiting jobs from the queue; `submit` brings them back."""
        self._mailbox.post("withdraw", jobs)

    def interrupt(self) -> None:
        """Let `wait` return inf, which ends the loop; jobs run on."""
        self._mailbox.post("interrupt")

    @property
    def records(self) -> Mapping[str, JobRecord]:
        """The unfinished jobs by id."""
        return self._queue.records

    def limit_caps(self, watts: Mapping[str, float]) -> None:
        """Bound the sum of power caps also while attempts are stopped, by team; "": of the whole cluster."""
        self._caps.watts = dict(watts)

    @property
    def simulated(self) -> bool:
        """True if the GPUs are simulated."""
        return self.engine.simulated

    def seconds_since_wait(self) -> float:
        """Return the time since `wait` last returned."""
        return time.monotonic() - self._returned_s

    def describe_job(self, job: str) -> dict[str, Any]:
        """Return the energy of an unfinished job, and its status if it has processes; empty: it is over."""
        record = self._queue.records.get(job)
        if record is None:
            return {}
        energy = {"energy_j": self._exits.total_energy_j(record), "energy_method": self.engine.energy_method}
        return {**energy, **describe_attempt(self._attempts.find_started(job), job, self._queue.now_s)}

    def wait_reason(self, job: str) -> str:
        """Return why the engine lets a job wait that the policy has started; empty: it does not."""
        attempt = self._attempts.find_queued(job)
        return "" if attempt is None else attempt.message

    # -- the Backend protocol

    @property
    def jobs(self) -> Jobs:
        """The current job table, with rows of jobs that have ended."""
        return self._queue.table.jobs

    @property
    def nodes(self) -> Nodes:
        """The engine's nodes."""
        return self.engine.nodes

    def wait(self, until_s: float, wake: frozenset[int] = WAKE_EVENTS) -> tuple[float, Events]:
        """Sleep until one of the events *wake* has happened, at most until *until_s*.

        A pause after each decision leaves most of the CPU time to the jobs; events that come shortly after a
        decision are handled together.
        """
        self._rest()
        while True:
            with self._event_batch():
                self._handle_requests()
            if self._interrupted:
                self._interrupted = False
                return math.inf, build_events()
            self._monitor.poll()
            self._capacity.update()
            self._caps.apply_waiting()
            self._power.sample(self._queue.now_s)
            verbs = {event.verb for event in self._queue.events}
            is_last = verbs and not self._attempts.attempts  # no other event follows soon
            if self._queue.read_clock() >= until_s or not wake.isdisjoint(verbs) or is_last:
                break
            if until_s == math.inf and not self._stay_open and self._is_quiet():
                break
            self._sleep(until_s)
        if METERED in wake:
            self._read_meter()
        events = self._queue.take_events()
        self._returned_s, self._returned_cpu_s = time.monotonic(), time.thread_time()
        return self._queue.now_s, events

    def _rest(self) -> None:
        cpu_s = time.thread_time() - self._returned_cpu_s
        rest_s = min(max(_REST * cpu_s, _MIN_REST_S), _MAX_REST_S)
        time.sleep(max(self._returned_s + rest_s - time.monotonic(), 0.0))

    def _is_quiet(self) -> bool:
        return not self._attempts.attempts and self._queue.next_retry_s == math.inf

    def _sleep(self, until_s: float) -> None:
        """Sleep until a request comes, the engine has news, or a progress file or a retry is due."""
        queue, busy = self._queue, bool(self._attempts.attempts)
        check_s = queue.now_s + CHECK_INTERVAL_S if busy else math.inf
        due_s = min(until_s, queue.next_retry_s, check_s, self._power.next_s)
        timeout_s = max(due_s - queue.read_clock(), 0.0)
        self._mailbox.sleep(min(timeout_s, self.engine.poll_interval_s), self.engine.wake_files())

    def apply(self, actions: Actions) -> None:
        """Stop, start and retune attempts, and switch nodes."""
        starting: dict[int, list[tuple[str, int, int, AttemptSettings]]] = {}
        retunes: list[tuple[AttemptRecord, AttemptSettings]] = []
        for verb, row, group, node, gpus, *settings in actions.tolist():
            job = self._queue.table.ids[row] if row >= 0 else ""
            if verb == STOP:
                self._stop(job)
            elif verb == RETUNE:
                retunes.append((self._attempts.current[job], AttemptSettings(*settings[:4])))
            elif verb == START:
                request = (job, node, gpus, AttemptSettings(*settings[:4]))
                starting.setdefault(group, []).append(request)
            elif verb in (POWER_OFF, POWER_ON) and not self.engine.power(node, verb == POWER_ON):
                self._queue.events.append(Event(NODE_BACK, node, self._queue.now_s))
        self._caps.retune(retunes)
        for requests in starting.values():
            self._start_group(requests)

    def is_idle(self) -> bool:
        """Return whether no job is left and none may come."""
        return not self._queue.records and not self._stay_open and self._mailbox.empty

    def close(self) -> Events:
        """Read the meters a last time and close the engine; jobs run on."""
        self._read_meter()
        events = self._queue.take_events()
        self.engine.close()
        self._recurring.close()
        self._mailbox.close()
        return events

    def describe(self) -> dict[str, Any]:
        """Return facts for the header of a run log."""
        return self.engine.describe()

    # -- restart of the service

    def adopt(self, records: Iterable[JobRecord]) -> None:
        """Add jobs of an earlier process, and take charge of their attempts that run or have just ended."""
        for record in records:
            self._queue.records[record.id] = record
        seen: set[Path] = set()
        for record in list(self._queue.records.values()):
            folders = attempt_folders(self.root, record.id)
            if not folders or record.id in self._attempts.current:
                continue
            if int(folders[-1].name) <= record.last_closed_attempt:
                continue
            attempt = self.engine.find(folders[-1])
            if attempt is not None and attempt.folder not in seen:
                seen.add(attempt.folder)
                self._adopt_attempt(attempt)

    def _adopt_attempt(self, attempt: AttemptRecord) -> None:
        attempt.is_array = len(attempt.jobs) > 1
        attempt.jobs = [job for job in attempt.jobs if job in self._queue.records]
        if not attempt.jobs:
            return
        records = [self._queue.records[job] for job in attempt.jobs]
        if not self.engine.adopt(attempt):
            for record in records:
                record.energy_j = None  # the counters of these GPUs are gone, too
                record.service_s += max(self._queue.read_clock() - attempt.since_s, 0.0)
                self._on_event(
                    "stopped", record.id, self._exits.facts(record, None, None, "Its GPUs are gone.")
                )
            return
        self._monitor.watch(attempt, adopted=True)
        self._attempts.add(attempt)
        for record in records:
            # What it has used so far was counted by the earlier process.
            self._ledger.add(record.team, -self.engine.counted_energy_j(record.id))
            if record.starts < attempt.number(record.id):
                # The earlier process ended before it could report the start.
                self._monitor.record_start(attempt, record, attempt.since_s)

    def initial_state(self, seed: int = 0) -> Snapshot:
        """Start a new job table, and return the snapshot from which a loop goes on."""
        queued = self._queue.rebuild()
        for attempt in self._attempts.attempts:
            attempt.reported_s, attempt.reported_rate = -math.inf, 0.0
        records = self._queue.records
        holders = self._attempts.lease_holders(records)
        running = [self._monitor.ran_event(*pair) for pair in holders]
        running += [self._monitor.protected_event(*pair) for pair in holders if pair[0].checkpoints]
        since_s = {record.row: attempt.since_s for attempt, record in holders}
        leases = self._attempts.build_leases(records)
        now_s = self._queue.now_s
        self._queue.events += [Event(NODE_LOST, node, now_s) for node in sorted(self._monitor.nodes_down)]
        self._capacity.report_all()
        state = build_initial_state(self.jobs, self.nodes, now_s, queued, leases, running, seed)
        return set_lease_starts(state, since_s)

    # -- requests, in the loop's thread

    def _handle_requests(self) -> None:
        new: list[JobRecord] = []
        for request, argument in self._mailbox.drain():
            if request == "submit":
                new += argument
                continue
            self._queue.add(new)  # one append for many jobs, before the requests that may name them
            new = []
            if request == "cancel":
                for job in argument:
                    self._cancel(job)
            elif request == "withdraw":
                for job in argument:
                    self._withdraw(job)
            elif request == "prioritise":
                self._prioritise(*argument)
            else:
                self._interrupted = True
        self._queue.add(new)

    def _cancel(self, job: str) -> None:
        record = self._queue.records.get(job)
        if record is None:
            self._on_event("unknown_job", job, {})
            return
        record.cancelled = True
        started = [attempt for attempt in self._attempts.of_job(job) if attempt.started]
        for attempt in started:
            self._monitor.end_job(attempt, job, "cancel")
        if not started:
            self._exits.finish(record, "CANCELLED", "It was cancelled while it was PENDING.")

    def _withdraw(self, job: str) -> None:
        record = self._queue.records.get(job)
        if record is not None and self._leave_queued(job):
            self._queue.withdraw(record)

    def _prioritise(self, priority: float, jobs: Iterable[str]) -> None:
        moved = []
        for record in (self._queue.records[job] for job in jobs if job in self._queue.records):
            record.columns = {**record.columns, "priority": priority}
            if record.row >= 0 and self._leave_queued(record.id):
                moved.append(record)
        self._queue.move_to_new_rows(moved)

    def _leave_queued(self, job: str) -> bool:
        """Remove a job from attempts that have not started; return False if one has."""
        attempts = self._attempts.of_job(job)
        if any(attempt.started for attempt in attempts):
            return False
        for attempt in attempts:
            self._exits.leave(attempt, job)
        return True

    # -- actions of the policy

    def _start_group(self, requests: list[tuple[str, int, int, AttemptSettings]]) -> None:
        """Start the jobs of a group: as one array if they can be fused, else one by one on the same GPUs."""
        jobs = list(dict.fromkeys(job for job, *_ in requests))
        allocation = tuple((node, gpus) for job, node, gpus, _ in requests if job == jobs[0])
        settings = requests[0][3]
        keys = {self._queue.records[job].fuse for job in jobs}
        members = [jobs] if len(keys) == 1 and keys != {""} else [[job] for job in jobs]
        first: AttemptRecord | None = None
        for some in members:
            attempt = AttemptRecord(list(some), allocation, settings, self._queue.now_s)
            records = [self._queue.records[job] for job in some]
            earlier = self._attempts.of_any(some)
            self._recurring.choose(records[0].spec, attempt)
            attempt.settings = self._caps.apply_user_limit(some[0], attempt.settings)
            blockers = [one for one in self._caps.find_blockers(attempt) if one not in earlier]
            self.engine.start(attempt, records, [*earlier, *blockers], first)
            self._attempts.add(attempt)
            self._monitor.update(attempt)
            first = first or attempt

    def _stop(self, job: str) -> None:
        attempt = self._attempts.current[job]
        if not attempt.started:
            self._exits.leave(attempt, job)
            record = self._queue.records[job]
            self._queue.report(STOPPED, record, record.completed_fraction)
        elif self._attempts.preempt(job):
            attempt.end_reason = attempt.end_reason or "stop"
            watch = attempt.checkpoints.get(job)
            if watch is not None and watch.reported is not None:
                # Only a budget goes before the protection.
                attempt.for_budget = watch.reported.until_s > self._queue.now_s
                attempt.unsaved_s = watch.reported.unsaved_s(self._queue.now_s)
            self.engine.stop(attempt)

    # -- energy

    def restore_energy(self, before_j: Mapping[str, float]) -> None:
        """Set the joules that earlier processes counted, by team and as "*"."""
        self._ledger.restore(before_j)

    def reset_energy(self) -> None:
        """Count the energy of all teams from zero again."""
        self._ledger.reset(*self._running_energy())

    def _read_meter(self) -> None:
        used_j, now_s = self._ledger.read(*self._running_energy()), self._queue.read_clock()
        for number, name in enumerate((ALL, *self.jobs.team.names), -1):
            self._queue.events.append(Event(METERED, number, now_s, 0.0, 0.0, used_j.get(name, 0.0)))

    def _running_energy(self) -> tuple[float, list[tuple[str, float]]]:
        """Return the joules of all GPUs, and pairs (team, joules) of the jobs in attempts."""
        self.engine.sample_energy()
        # A job that restarts is in two attempts.
        jobs = dict.fromkeys(job for attempt in self._attempts.attempts for job in attempt.jobs)
        records = [self._queue.records[job] for job in jobs]
        used = [(one.team, self.engine.counted_energy_j(one.id)) for one in records]
        return self.engine.total_energy_j() or 0.0, used
