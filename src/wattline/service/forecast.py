"""Forecast of a job's start, end and energy: a simulation from the current state under the current policy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.core.actions import ACTION_CAP_W, ACTION_GPUS, ACTION_JOB, ACTION_NODE, ACTION_VERB, START
from wattline.core.events import (
    EVENT_AT_S,
    EVENT_COLUMNS,
    EVENT_ENERGY_J,
    EVENT_JOB,
    EVENT_VERB,
    FAILED,
    FINISHED,
    LEASE_END_EVENTS,
)
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.leases import LEASE_GROUP, LEASE_JOB, Leases
from wattline.core.protocols import Models, Policy
from wattline.core.queue import QUEUE_JOB, QUEUE_REQUESTED_GPUS, Queue
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.usage import charge
from wattline.errors import ModelError
from wattline.loop.run import LoopStep, iterate
from wattline.loop.state import Decision, advance, build_empty_state, restore_state
from wattline.models.workload import Workload
from wattline.policy.knobs import set_knob
from wattline.service.http.schemas import ForecastResponse
from wattline.service.view import ControllerView
from wattline.units import format_seconds, pluralize

QUEUE_LIMIT = 2000  # jobs from the front of the queue that a forecast simulates
_STEP_LIMIT = 4000
_TIME_LIMIT_S = 2.0
_EQUAL_S = 1.0  # times that differ by less are the same to a user


@dataclass(frozen=True)
class Forecast:
    """A simulation from *state*, in which one job is watched."""

    view: ControllerView
    state: Snapshot
    row: int  # of the job in the table of *state*
    policy: Policy

    @classmethod
    def from_queue(cls, view: ControllerView, position: int) -> Forecast:
        """Return the forecast of a queued job, with the running jobs and the front of the queue."""
        assert view.step is not None
        row = int(view.step.state.queue.job[position])
        state = current_state(view)
        kept = state.queue.running.copy()
        kept[:QUEUE_LIMIT] = True
        kept[int(np.searchsorted(state.queue.job, row))] = True
        state, rows = select_jobs(state, np.flatnonzero(kept))
        return cls(view, state, int(np.flatnonzero(rows == row)[0]), view.policy)

    def run(self, scenario: str) -> ForecastResponse:
        """Simulate until the job ends, or for at most two seconds; *scenario* names it in the response."""
        view, state = self.view, self.state
        sim = Sim(
            state.jobs, state.nodes, view.models, overheads=Overheads(restart_s=1.0), initial_state=state
        )
        give_up_s = time.monotonic() + _TIME_LIMIT_S
        own = state.leases.job == self.row
        starts_s: float | None = state.now_s if own.any() else None
        gpus, cap_w = int(state.leases.gpus[own].sum()), int(state.leases.cap_w[own].max(initial=0))
        kind = state.nodes.kind.word(int(state.leases.node[own][0])) if own.any() else ""
        ends_s, used_j, reason, given_up = None, 0.0, Reason.NONE, False
        models: Any = view.models
        for number, step in enumerate(iterate(sim, self.policy, models, view.placer, state)):
            for event in step.events[step.events[:, EVENT_JOB] == self.row].tolist():
                if event[EVENT_VERB] in LEASE_END_EVENTS:
                    used_j += event[EVENT_ENERGY_J]
                if event[EVENT_VERB] in (FINISHED, FAILED):
                    ends_s = event[EVENT_AT_S]
            started = [
                a for a in step.actions[step.actions[:, ACTION_JOB] == self.row] if a[ACTION_VERB] == START
            ]
            if started and starts_s is None:
                starts_s, cap_w = step.state.now_s, int(started[0][ACTION_CAP_W])
                gpus = int(sum(action[ACTION_GPUS] for action in started))
                kind = state.nodes.kind.word(int(started[0][ACTION_NODE]))
            reason = self._wait_reason(step)
            given_up = number > _STEP_LIMIT or time.monotonic() > give_up_s
            if ends_s is not None or reason is Reason.NEVER_IN_BUDGET or given_up:
                break
        never = starts_s is None and not given_up
        method, error = describe_energy(view.models, state.jobs, self.row, kind)
        return ForecastResponse(
            scenario=scenario,
            starts_s=starts_s,
            ends_s=ends_s,
            gpus_asked=int(state.jobs.gpus[self.row]),
            gpus=gpus or int(state.jobs.gpus[self.row]),
            kind=kind,
            cap_w=cap_w or None,
            energy_j=(used_j or None) if ends_s is not None else None,
            energy_method=method if ends_s is not None else "",
            energy_error=error if ends_s is not None else None,
            reason="" if starts_s is not None else reason.value if reason is not Reason.NONE else "",
            never_starts=never,
            text=_sentence(scenario, starts_s, ends_s, state.now_s, never),
        )

    def _wait_reason(self, step: LoopStep) -> Reason:
        """Return why the job waits after a step; NONE: it runs, or has not arrived."""
        queue = step.state.queue.job
        position = int(np.searchsorted(queue, self.row))
        if position == len(queue) or queue[position] != self.row:
            return Reason.NONE
        return REASONS[int(step.placement.reason[position])]

    def run_alternatives(self) -> list[ForecastResponse]:
        """Simulate fewer GPUs, the highest priority, and no energy budget, as far as they apply."""
        requested = int(self.state.jobs.gpus[self.row])
        scenarios: list[tuple[str, Callable[[], Forecast]]] = [
            (f"with {pluralize(n, 'GPU')}", lambda n=n: self.with_columns(gpus=n))  # type: ignore[misc]
            for n in sorted({max(requested // 2, 1), 1} - {requested})
        ]
        top = float(self.state.jobs.priority.max())
        if self.state.jobs.priority[self.row] <= top:
            scenarios.append((f"with priority {top + 1:g}", lambda: self.with_columns(priority=top + 1)))
        if self.view.budgets:
            unlimited = set_knob(self.policy, "budgets", ())
            scenarios.append(("without the energy budget", lambda: replace(self, policy=unlimited)))
        return [build().run(scenario) for scenario, build in scenarios]

    def with_columns(self, **columns: float) -> Forecast:
        """Return the forecast with other values in the job's row of the table."""
        jobs, block = self.state.jobs, self.state.queue.block.copy()
        if "gpus" in columns:  # which an elastic policy keeps, too
            # step_s is the step time on the requested number of GPUs
            step_s = float(jobs.step_s[self.row]) * self._relative_step_time(int(columns["gpus"]))
            gpus = columns["gpus"]
            columns = {**columns, "step_s": step_s, "min_gpus": gpus, "max_gpus": gpus}
            position = int(np.searchsorted(self.state.queue.job, self.row))
            if position < len(self.state.queue):  # else the job has not arrived yet
                block[QUEUE_REQUESTED_GPUS, position] = columns["gpus"]
        changed = {}
        for name, value in columns.items():
            column = getattr(jobs, name).copy()
            column[self.row] = value
            changed[name] = column
        state = replace(self.state, jobs=replace(jobs, **changed), queue=Queue(block))
        return replace(self, state=state)

    def _relative_step_time(self, gpus: int) -> float:
        """Return the step time on *gpus* GPUs over that on the requested number."""
        rows = np.array([self.row])
        grants = Grants.of(rows, np.array([gpus]), kind=self.state.nodes.kind.word(0))
        return 1.0 / float(self.view.models.speed(self.state.jobs, grants)[0])


def current_state(view: ControllerView) -> Snapshot:
    """Return the state of the last decision, applied and advanced to now."""
    now_s, step = view.clock(), view.step
    if step is None:
        empty = build_empty_state(Jobs.of(submit_s=[], gpus=[], duration_s=[]), view.nodes)
        usage = view.usage
        if usage is not None:
            usage = charge(usage, empty.jobs, empty.leases, np.empty((0, EVENT_COLUMNS)), now_s)
        return replace(empty, now_s=now_s, usage=usage, quotas=view.quotas)
    state, no_events = step.state, np.empty((0, EVENT_COLUMNS))
    decision = Decision(step.placement, step.actions)
    return advance(
        state, decision, now_s, no_events, state.jobs, state.nodes.accepted_kinds(state.jobs.gpu_kind)
    )


def select_jobs(state: Snapshot, positions: Any) -> tuple[Snapshot, Any]:
    """Return a snapshot with only these queue positions, in a table of their own, and their former rows."""
    block = state.queue.block[:, positions].copy()
    rows = block[QUEUE_JOB].astype(np.int64)
    block[QUEUE_JOB] = np.arange(len(rows))
    leases = state.leases.block.copy()
    for line in (LEASE_JOB, LEASE_GROUP):
        leases[line] = np.searchsorted(rows, leases[line])
    jobs = state.jobs.take(rows)
    return (
        restore_state(
            jobs,
            state.nodes,
            state.seed,
            state.now_s,
            Queue(block),
            Leases(leases),
            state.meter,
            state.usage,
            state.quotas,
        ),
        rows,
    )


def changes_something(changed: ForecastResponse, expected: ForecastResponse) -> bool:
    """Return whether a job starts or ends earlier in a scenario than as things are."""
    pairs = ((changed.starts_s, expected.starts_s), (changed.ends_s, expected.ends_s))
    return any(
        at_s is not None and at_s < (math.inf if as_is_s is None else as_is_s - _EQUAL_S)
        for at_s, as_is_s in pairs
    )


def describe_energy(models: Models, jobs: Jobs, row: int, kind: str) -> tuple[str, float | None]:
    """Return how the energy of a job is predicted, and the mean relative error of that; None: unknown."""
    model = jobs.model.word(row)
    if not model:
        return f"assumed {kind} at the power of a busy GPU: the job names no model", None
    find: Callable[[str, str], Workload] | None = getattr(models, "find", None)
    try:
        workload = None if find is None else find(model.partition("(")[0].strip(), kind)
    except ModelError:
        workload = None
    if workload is None:
        return f"predicted: {model} was not measured on {kind}", None
    errors = (workload.source.samples_error, workload.source.watts_error)
    error = math.hypot(*errors)
    return f"predicted from measurements of {model} on {kind}", error if math.isfinite(error) else None


def _sentence(scenario: str, starts_s: float | None, ends_s: float | None, now_s: float, never: bool) -> str:
    if starts_s is None:
        return f"{scenario}: " + ("it never starts" if never else "no start within the simulated time")
    start = "it runs" if starts_s <= now_s else f"it starts at {_format_time(starts_s)}"
    if starts_s > now_s:
        start += f" (in {format_seconds(starts_s - now_s)})"
    return f"{scenario}: {start}" + ("" if ends_s is None else f" and ends at {_format_time(ends_s)}")


def _format_time(at_s: float) -> str:
    try:
        then, now = time.localtime(at_s), time.localtime()
    except (OverflowError, ValueError, OSError):
        return "a time beyond the calendar"
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%Y-%m-%d %H:%M", then)
