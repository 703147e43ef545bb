"""The simulator: a backend with a virtual clock that jumps from event to event."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np

from wattline.backend.sim import node_faults
from wattline.backend.sim.attempt import SimAttempt
from wattline.backend.sim.checkpoints import SimCheckpoints
from wattline.backend.sim.faults import Faults, Overheads, compact, list_limits
from wattline.backend.sim.node_faults import NodeFaults
from wattline.backend.sim.power_draw import PowerDraw
from wattline.backend.sim.spread_speeds import SpreadPenalty, SpreadSpeeds
from wattline.backend.sim.true_speeds import TrueSpeeds
from wattline.core.actions import POWER_OFF, POWER_ON, RETUNE, START, STOP, Actions, list_actions
from wattline.core.events import (
    ARRIVED,
    EVENT_COLUMNS,
    EVENT_VERB,
    FAILED,
    FINISHED,
    LOST,
    METERED,
    NODE_BACK,
    NODE_LOST,
    RAN,
    READY,
    STOPPED,
    WAKE_EVENTS,
    Events,
    build_events,
)
from wattline.core.host_share import fill_host_shares
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats
from wattline.errors import ConfigError
from wattline.loop.reconcile import reconcile
from wattline.models.trace_model import TraceModels


@dataclass(eq=False)
class Sim:
    """Backend that runs *jobs* on *nodes* in virtual time, with the speed and power of *truth*.

    With *quantum_s*, decisions, arrivals and completions happen at its multiples only, and a job does a
    whole number of steps per quantum, as in published round-based simulators. Otherwise nothing is computed
    between events. *initial_state* is a snapshot to continue from, with the first rows of *jobs* as queue.
    *limit_s* are time limits: an attempt that holds GPUs for so long is killed and its job has FAILED, as
    in Slurm, where a requeued job begins a new limit.
    """

    jobs: Jobs
    nodes: Nodes
    truth: Models = field(default_factory=TraceModels)
    quantum_s: float | None = None
    overheads: Overheads = field(default_factory=Overheads)
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    initial_state: Snapshot | None = None
    limit_s: Floats | None = None  # inf or nan: none
    spread: SpreadPenalty | None = None  # slowdown of jobs in several racks or pods

    def __post_init__(self) -> None:
        if self.quantum_s is not None and not self.quantum_s > 0:
            raise ConfigError(f"quantum_s must be above 0, got {self.quantum_s}")
        if self.seed < 0:
            raise ConfigError(f"seed must be at least 0, got {self.seed}")
        self.jobs = fill_host_shares(self.jobs, self.nodes)
        count = len(self.jobs)
        self._now_s = 0.0
        self._arrivals_s = compact(self._boundary(self.jobs.submit_s))
        self._arrived = 0
        self._runs: dict[int, SimAttempt] = {}
        self._ends: list[tuple[float, int, int]] = []  # when, job or -1 - node, start number
        self._starts = [0] * count
        self._starting: list[tuple[float, int, int, float]] = []  # when ready, job, start number, seconds
        self._failures = [0] * count  # attempts that failed
        self._versions = [0] * count  # an end in the heap is valid only with the newest version
        self._done = compact(np.zeros(count))
        self._gpus_before = [0] * count
        self._total = compact(self.jobs.steps)
        self._step_s = compact(self.jobs.step_s)
        self._whole: list[bool] = self.jobs.whole.tolist()
        self._checkpoints = SimCheckpoints(self.jobs, self.faults.checkpoint_s)
        self._cost = {name: self.overheads.column(name, count) for name in vars(self.overheads)}
        self._limit_s = list_limits(self.limit_s, count)
        self._speeds: TrueSpeeds | SpreadSpeeds = TrueSpeeds(self.truth, self.jobs, self.nodes)
        if self.spread is not None:
            self._speeds = self.spread.wrap(self._speeds)
        self._team: list[int] = self.jobs.team.codes.tolist()
        self._team_j = [0.0] * len(self.jobs.team.names)
        self._pending: list[float] = []  # events not yet returned, EVENT_COLUMNS numbers each
        self._power = PowerDraw(self.nodes, self._arrivals_s[0] if count else 0.0)
        self._boots = [0] * len(self.nodes)  # number of times each node was switched off
        self._boot_s: list[float] = self.nodes.boot_s.tolist()
        self.faults.check_progress(self.jobs, self.nodes)
        self._node_faults = NodeFaults(
            self.faults,
            len(self.nodes),
            self.seed,
            self._ends,
            self._boundary,
            self._arrivals_s[0] if count else 0.0,
        )
        if self.initial_state is not None:
            self._continue_from(self.initial_state)

    def _continue_from(self, state: Snapshot) -> None:
        """Take over queue and leases of *state*; running jobs continue without a restart cost."""
        if not np.array_equal(state.queue.job, np.arange(len(state.queue))):
            raise ConfigError(
                f"initial_state has jobs {state.queue.job.tolist()[:5]} in its queue, "
                f"expected the first {len(state.queue)} rows of jobs"
            )
        self._now_s = state.now_s
        self._arrived = len(state.queue)
        self._power = PowerDraw(self.nodes, state.now_s)
        for job, steps in zip(state.queue.job.tolist(), state.steps_done.tolist(), strict=True):
            self._done[job] = steps
        costs, self._cost = self._cost, {name: compact(np.zeros(len(self.jobs))) for name in self._cost}
        self.apply(reconcile(Leases.of((), (), (), ()), state.leases))
        self._cost = costs
        for job, column in zip(state.queue.job.tolist(), state.queue.block.T, strict=True):
            if job in self._runs and self._checkpoints.is_reported[job]:
                self._checkpoints.take_over(self._runs[job], column, self._now_s)
                self._pending += self._checkpoints.event(job, self._runs[job], self._now_s)

    # -- the Backend protocol

    def wait(self, until_s: float, wake: frozenset[int] = WAKE_EVENTS) -> tuple[float, Events]:
        """Jump from event to event until one of *wake* happens, at most to *until_s*."""
        ends, arrivals, pending = self._ends, self._arrivals_s, self._pending
        before = len(pending)
        while True:
            now_s = self._next_s(until_s)
            if now_s == math.inf:
                break
            self._now_s = now_s
            while ends and ends[0][0] <= now_s:
                _, target, version = heappop(ends)
                if target < 0:
                    self._change_node(-1 - target, version)
                elif self._versions[target] == version:
                    self._end_attempt(target)
            arrived = self._arrived
            while arrived < len(arrivals) and arrivals[arrived] <= now_s:
                pending += (ARRIVED, arrived, arrivals[arrived], 0.0, 0.0, 0.0)
                arrived += 1
            self._arrived = arrived
            verbs = pending[before + EVENT_VERB :: EVENT_COLUMNS]
            if now_s >= until_s or not wake.isdisjoint(verbs) or (verbs and self.is_idle()):
                break
        if now_s == math.inf and before == len(pending):
            return now_s, build_events()
        self._report_ready()
        if METERED in wake:
            self._read_meter()
        return self._now_s, self._take_events()

    def _report_ready(self) -> None:
        """Report the start-ups that have ended; none of them is worth a decision of its own."""
        starting = self._starting
        while starting and starting[0][0] <= self._now_s:
            ready_s, job, start, startup_s = heappop(starting)
            if job in self._runs and self._starts[job] == start:
                self._pending += (READY, job, ready_s, 0.0, startup_s, 0.0)

    def _read_meter(self) -> None:
        """Report the energy that the cluster and each team have used."""
        for run in self._runs.items():
            self._count_energy(*run)
        self._power.count_energy(self._now_s)
        used_j = (self._power.energy_j, *self._team_j)
        for team, energy_j in enumerate(used_j, -1):
            self._pending += (METERED, team, self._now_s, 0.0, 0.0, energy_j)

    def _take_events(self) -> Events:
        """Return the pending events and forget them."""
        events = np.array(self._pending, dtype=np.float64).reshape(-1, EVENT_COLUMNS)
        events.setflags(write=False)
        self._pending.clear()
        return events

    def apply(self, actions: Actions) -> None:
        """Start, stop and retune jobs and switch nodes, at the present time."""
        runs, now_s = self._runs, self._now_s
        changed: dict[int, bool] = {}  # job -> whether lease or group changed, not only its settings
        joining: list[tuple[int, int]] = []
        for verb, job, group, nodes, gpus, settings in list_actions(actions):
            if verb == START:
                runs[job] = SimAttempt(nodes, gpus, [job], self._done[job], now_s, settings)
                changed[job] = True
                if group != job:
                    joining.append((job, group))
            elif verb == STOP:
                run = runs[job]
                # Saving also costs work done before the last retune, counted at the present rate.
                ran_s = now_s - self._cost["stop_s"][job] - run.progress_at_s
                steps = max(run.saved, run.base + run.rate * ran_s)
                if not run.saves_at_stop:
                    steps = self._checkpoints.saved_steps(job, run, now_s)
                changed.pop(job, None)
                changed.update(dict.fromkeys(self._finish_lease(STOPPED, job, run, steps), True))
            elif verb == RETUNE:
                runs[job].settings = settings
                changed.setdefault(job, False)
            elif verb == POWER_OFF:
                self._switch_off(nodes[0])
            elif verb == POWER_ON:
                node = nodes[0]
                self._power.set_booting(node, now_s)
                ready_s = float(self._boundary(np.float64(now_s + self._boot_s[node])))
                heappush(self._ends, (ready_s, -1 - node, self._boots[node]))
        for job, group in joining:
            members = runs[job].group = runs[group].group
            members.append(job)
            changed.update(dict.fromkeys(members, True))
        if changed:
            self._update_rates(changed)

    def is_idle(self) -> bool:
        """Return whether nothing runs and no job is still to arrive."""
        return not self._runs and self._arrived == len(self._arrivals_s)

    def close(self) -> Events:
        """Return the energy of the whole cluster, from the first arrival until now."""
        for run in self._runs.items():
            self._count_energy(*run)
        self._power.count_energy(self._now_s)
        self._pending += (METERED, -1, self._now_s, 0.0, 0.0, self._power.energy_j)
        return self._take_events()

    def describe(self) -> dict[str, Any]:
        """Return the description for the header of the log."""
        overheads = {
            k: v if isinstance(v, float | int) else "per job" for k, v in vars(self.overheads).items()
        }
        numbers = {k: v for k, v in vars(self.faults).items() if k != "outages"}
        faults = {k: v for k, v in numbers.items() if math.isfinite(v)}
        if self.faults.outages:
            faults["outages"] = len(self.faults.outages)
        return {
            "backend": "sim",
            "truth": str(self.truth),
            "quantum_s": self.quantum_s,
            "overheads": overheads,
            "faults": faults,
            **({} if self.spread is None else {"spread": self.spread.describe()}),
        }

    def steps_done(self) -> dict[int, float]:
        """Return the true steps of every job that holds GPUs, for tests."""
        return {job: run.count_steps(self._now_s) for job, run in self._runs.items()}

    # -- time

    def _boundary(self, at_s: Floats | np.float64) -> Floats:
        """Round *at_s* up to the next time at which something may happen."""
        if self.quantum_s is None:
            return np.asarray(at_s)
        return np.asarray(np.ceil(at_s / self.quantum_s - 1e-9) * self.quantum_s)

    def _next_s(self, until_s: float) -> float:
        ends = self._ends
        while ends and ends[0][1] >= 0 and self._versions[ends[0][1]] != ends[0][2]:
            heappop(ends)
        now_s = until_s if until_s > self._now_s else self._now_s
        if self._arrived < len(self._arrivals_s) and self._arrivals_s[self._arrived] < now_s:
            now_s = self._arrivals_s[self._arrived]
        if ends and ends[0][0] < now_s:
            now_s = ends[0][0]
        if self.quantum_s is not None and now_s < math.inf:
            now_s = max(now_s, float(self._boundary(np.float64(now_s))))  # rounding must not end before it
        return now_s

    # -- leases

    def _count_energy(self, job: int, run: SimAttempt) -> None:
        """Count the energy of a job until now."""
        seconds = self._now_s - run.energy_until_s
        run.energy_j += run.watts * seconds
        self._team_j[self._team[job]] += run.watts * seconds
        self._power.energy_j += run.above_idle_w * seconds
        run.energy_until_s = self._now_s

    def _finish_lease(self, verb: int, job: int, run: SimAttempt, steps: float) -> list[int]:
        """End a lease after so many *steps*; return the jobs that stay on its GPUs."""
        self._count_energy(job, run)
        self._done[job] = steps
        self._gpus_before[job] = sum(run.gpus)
        self._versions[job] += 1
        del self._runs[job]
        run.group.remove(job)
        self._pending += (verb, job, self._now_s, steps, 0.0, run.energy_j)
        return run.group

    def _end_attempt(self, job: int) -> None:
        """End an attempt at its last step, or at the step at which it fails."""
        run, total = self._runs[job], self._total[job]
        if self._now_s >= run.killed_s and run.count_steps(self._now_s) < total * (1 - 1e-9):
            others = self._fail_lease(FAILED, job, run)
        elif run.fails_at >= total:
            others = self._finish_lease(FINISHED, job, run, total)
        else:
            self._failures[job] += 1
            others = self._fail_lease(
                LOST if self._failures[job] <= self.faults.retries else FAILED, job, run
            )
        if others:
            self._update_rates(dict.fromkeys(others, True))

    def _fail_lease(self, verb: int, job: int, run: SimAttempt) -> list[int]:
        """End a lease by a failure: the job falls back to its last checkpoint."""
        return self._finish_lease(verb, job, run, self._checkpoints.saved_steps(job, run, self._now_s))

    def _update_rates(self, changed: dict[int, bool]) -> None:
        """Set rate, power and end of the jobs in *changed* from now on."""
        jobs = list(changed)
        runs = [self._runs[job] for job in jobs]
        now_s, power, checkpoints = self._now_s, self._power, self._checkpoints
        versions, ends, pending = self._versions, self._ends, self._pending
        for job, run, (speed, gpu_w) in zip(jobs, runs, self._speeds.look_up(jobs, runs), strict=True):
            is_new = run.rate == 0.0
            if is_new:
                cost_s = self._start_cost(job, run)
                run.ready_s = now_s + cost_s
                if cost_s > 0 or self._starts[job] > 1:
                    heappush(self._starting, (run.ready_s, job, self._starts[job], cost_s))
                if self._limit_s[job] < math.inf:
                    run.killed_s = float(self._boundary(np.float64(now_s + self._limit_s[job])))
                if self.faults.job_failure > 0:
                    run.fails_at = self._draw_failure(job, run)
                reached = run.saved
            else:
                cost_s = max(0.0, run.ready_s - now_s)
                self._count_energy(job, run)
                reached = max(run.saved, run.count_steps(now_s))
                saves = changed[job] and run.saves_at_stop
                run.saved = reached if saves else checkpoints.saved_steps(job, run, now_s)
            busy_w, idle_w = power.compute_watts(run.nodes, run.gpus, gpu_w, run.settings[0])
            members = len(run.group)
            run.watts = busy_w / members
            run.above_idle_w = (busy_w - idle_w) / members
            step_s, goal = self._step_s[job] / speed, min(self._total[job], run.fails_at)
            if self.quantum_s is None:
                end_s = run.go_on(reached, now_s + cost_s, step_s, goal)
            else:
                end_s = run.go_on_in_quanta(
                    reached, now_s, cost_s, step_s, goal, self.quantum_s, self._whole[job]
                )
            if is_new or (changed[job] and run.saves_at_stop):
                run.checkpoints_from_s = run.progress_at_s
            version = versions[job] = versions[job] + 1
            heappush(ends, (min(end_s, run.killed_s), job, version))
            pending += (RAN, job, run.progress_at_s, run.base, run.rate, run.watts)
            if checkpoints.is_reported[job]:
                if is_new:
                    checkpoints.begin(job, run, now_s)
                pending += checkpoints.event(job, run, now_s)

    def _start_cost(self, job: int, run: SimAttempt) -> float:
        self._starts[job] += 1
        if self._starts[job] == 1:
            return self._cost["start_s"][job]
        cost_s, rescale_s = self._cost["restart_s"][job], self._cost["rescale_s"][job]
        return cost_s + rescale_s if rescale_s and self._gpus_before[job] != sum(run.gpus) else cost_s

    # -- faults

    def _draw_failure(self, job: int, run: SimAttempt) -> float:
        """Draw the step at which this attempt fails; inf: it does not."""
        rng = np.random.default_rng((self.seed, 1 << 40, job, self._failures[job]))
        fails, where = rng.random(2).tolist()
        if fails >= self.faults.job_failure:
            return math.inf
        return float(run.saved + where * (self._total[job] - run.saved))

    def _change_node(self, node: int, code: int) -> None:
        """Handle a node that has booted, fails, is repaired, or begins or ends an outage."""
        now_s = self._now_s
        if code > 0:
            if code != self._boots[node]:
                return
            self._power.set_up(node, now_s)
            self._pending += (NODE_BACK, node, now_s, 0.0, 0.0, 0.0)
            change = self._node_faults.boot(node, now_s)
        else:
            change = self._node_faults.change(node, code, now_s, self._power.is_off(node))
        if change == node_faults.BACK:
            self._power.set_up(node, now_s)
            self._pending += (NODE_BACK, node, now_s, 0.0, 0.0, 0.0)
        elif change == node_faults.LOST:
            self._lose_node(node)

    def _lose_node(self, node: int) -> None:
        """Take a node down; its jobs fall back to their last checkpoint."""
        for job in sorted(job for job, run in self._runs.items() if node in run.nodes):
            self._fail_lease(LOST, job, self._runs[job])  # none stays: a group is lost as a whole
        self._power.set_down(node, self._now_s)
        self._pending += (NODE_LOST, node, self._now_s, 0.0, 0.0, 0.0)

    def _switch_off(self, node: int) -> None:
        """Switch an idle node off; `loop.check` guarantees that nothing runs there."""
        self._boots[node] += 1
        self._power.set_off(node, self._now_s)
