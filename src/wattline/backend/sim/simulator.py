"""The simulator: a backend whose clock jumps from event to event."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np

from wattline.backend.sim.power_draw import Power
from wattline.core.actions import POWER_OFF, POWER_ON, RETUNE, STOP, Actions
from wattline.core.events import (
    ARRIVED,
    EVERY_EVENT,
    FAILED,
    FINISHED,
    LOST,
    METERED,
    NODE_BACK,
    NODE_LOST,
    RAN,
    STOPPED,
    Events,
    rows,
)
from wattline.core.grants import Grants
from wattline.core.host_share import with_shares
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Labels
from wattline.errors import ConfigError
from wattline.loop.reconcile import reconcile
from wattline.models.job_classes import sorts
from wattline.models.trace_model import Asked


@dataclass(frozen=True)
class Overheads:
    """Seconds without progress while GPUs are held: one number for all jobs, or one per job.

    The first start costs *start_s*, every later one *restart_s*, plus *rescale_s* with another
    number of GPUs. Saving costs the last *stop_s* seconds of work before a stop.
    """

    start_s: float | Sequence[float] = 0.0
    restart_s: float | Sequence[float] = 30.0
    rescale_s: float | Sequence[float] = 0.0
    stop_s: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not np.all(np.asarray(value) >= 0):
                raise ConfigError(f"{name} must be at least 0, got {value}")

    def column(self, name: str, count: int) -> list[float]:
        """One number per job."""
        return [float(v) for v in np.broadcast_to(np.asarray(getattr(self, name), np.float64), count)]


@dataclass(frozen=True)
class Faults:
    """What breaks, on a schedule that only the seed decides.

    Each node fails after exponential times of mean *node_mtbf_s* and is back after *node_repair_s*;
    its jobs go back to what they saved, which they do every *checkpoint_s* of running (and when the
    company on their GPUs changes). Each attempt
    of a job fails with probability *job_failure* at a random point of what is left; after
    *retries* more attempts the job has failed for good.
    """

    node_mtbf_s: float = math.inf
    node_repair_s: float = 3600.0
    job_failure: float = 0.0
    retries: int = 3
    checkpoint_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("node_mtbf_s", "node_repair_s", "checkpoint_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        if not 0 <= self.job_failure < 1:
            raise ConfigError(f"job_failure must be at least 0 and below 1, got {self.job_failure}")


_AS_ASKED = (0, 0, 0, 0, 0)


@dataclass(slots=True)
class _Run:
    """A job that holds GPUs."""

    nodes: list[int]
    gpus: list[int]
    company: list[int]  # the jobs on these GPUs, itself included; one list for all of them
    saved: float  # steps it came with, or saved since
    settled_s: float  # until when its energy is counted
    settings: tuple[int, ...] = _AS_ASKED  # cap_w, batch and what each GPU has of the host
    base: float = 0.0  # steps at mark_s
    mark_s: float = 0.0
    clock_s: float = 0.0  # since when it saves its work every so often
    ready_s: float = 0.0  # when it has started up
    rate: float = 0.0  # 0: not under way yet
    watts: float = 0.0  # its share of what the GPUs draw
    more_w: float = 0.0  # its share of what they draw more than idle
    energy_j: float = 0.0
    fails_at: float = math.inf  # steps


@dataclass(eq=False)
class Sim:
    """Runs *jobs* on *nodes* in virtual time; jobs do what *truth* says, whatever policies believe.

    With *quantum_s* everything happens on the multiples of it: decisions, arrivals and completions
    wait for the next one, and a job does a whole number of steps per quantum (published round-based
    simulators work so). Otherwise nothing is computed between events. It *begins* with nobody there, or
    goes on from a snapshot whose queue is the first rows of *jobs*: what would come of that.
    """

    jobs: Jobs
    nodes: Nodes
    truth: Models = field(default_factory=Asked)
    quantum_s: float | None = None
    overheads: Overheads = field(default_factory=Overheads)
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    begins: Snapshot | None = None

    def __post_init__(self) -> None:
        if self.quantum_s is not None and not self.quantum_s > 0:
            raise ConfigError(f"quantum_s must be above 0, got {self.quantum_s}")
        if self.seed < 0:
            raise ConfigError(f"seed must be at least 0, got {self.seed}")
        self.jobs = with_shares(self.jobs, self.nodes)
        count = len(self.jobs)
        self._now_s = 0.0
        self._arrivals_s: list[float] = self._boundary(self.jobs.submit_s).tolist()
        self._arrived = 0
        self._runs: dict[int, _Run] = {}
        self._ends: list[tuple[float, int, int]] = []  # when, job or -1 - node, start number
        self._starts = [0] * count
        self._tries = [0] * count  # attempts that failed
        self._versions = [0] * count  # an end in the heap counts only with the newest
        self._done = [0.0] * count
        self._gpus_before = [0] * count
        self._total: list[float] = self.jobs.steps.tolist()
        self._step_s: list[float] = self.jobs.step_s.tolist()
        self._whole: list[bool] = self.jobs.whole.tolist()
        self._cost = {name: self.overheads.column(name, count) for name in vars(self.overheads)}
        self._asked: list[int] = self.jobs.gpus.tolist()
        self._kind: list[int] = self.nodes.kind.codes.tolist()
        # What most starts need, looked up instead of asked one by one: speed and watts on each kind.
        self._as_asked = [self._all_as_asked(name) for name in self.nodes.kind.names]
        # Of jobs that are alike the truth is asked once; of others, of each by itself.
        alike = getattr(self.truth, "alike", False)
        self._sort: list[int] = sorts(self.jobs)[0].tolist() if alike else list(range(count))
        self._known: dict[tuple[int, ...], tuple[float, float]] = {}
        self._fuse: list[str] = self.jobs.fuse.words()
        self._team: list[int] = self.jobs.team.codes.tolist()
        self._team_j = [0.0] * len(self.jobs.team.names)
        self._reports: list[float] = []  # six numbers per event, in the order in which things happened
        self._power = Power(self.nodes, self._arrivals_s[0] if count else 0.0)
        self._node_rng = [np.random.default_rng((self.seed, n)) for n in range(len(self.nodes))]
        self._up = [True] * len(self.nodes)
        self._boots = [0] * len(self.nodes)  # how often each was switched off
        self._boot_s: list[float] = self.nodes.boot_s.tolist()
        self._spared_s: dict[int, float] = {}  # when nodes that are off would have broken
        if math.isfinite(self.faults.node_mtbf_s):
            for node in range(len(self.nodes)):
                self._break_later(node, self._arrivals_s[0] if count else 0.0)
        if self.begins is not None:
            self._go_on_from(self.begins)

    def _go_on_from(self, there: Snapshot) -> None:
        """Those who are in the queue have arrived; who runs goes on without having to start again."""
        if not np.array_equal(there.queue.job, np.arange(len(there.queue))):
            raise ConfigError("the jobs of a snapshot to go on from are not the first of all, expected these")
        self._now_s = there.now_s
        self._arrived = len(there.queue)
        self._power = Power(self.nodes, there.now_s)
        for job, steps in zip(there.queue.job.tolist(), there.steps_done.tolist(), strict=True):
            self._done[job] = steps
        costs, self._cost = self._cost, {name: [0.0] * len(self.jobs) for name in self._cost}
        self.apply(reconcile(Leases.of((), (), (), ()), there.leases))
        self._cost = costs

    # -- the Backend protocol

    def wait(self, until_s: float, wake: frozenset[int] = EVERY_EVENT) -> tuple[float, Events]:
        """Jump from one arrival or end to the next until one of *wake*, at most to *until_s*."""
        ends, arrivals, reports = self._ends, self._arrivals_s, self._reports
        told = len(reports)
        while True:
            now_s = self._next_s(until_s)
            if now_s == math.inf:
                break
            self._now_s = now_s
            while ends and ends[0][0] <= now_s:
                _, who, version = heappop(ends)
                if who < 0:
                    self._turn_node(-1 - who, version)
                elif self._versions[who] == version:
                    self._end(who)
            while self._arrived < len(arrivals) and arrivals[self._arrived] <= now_s:
                reports += (ARRIVED, self._arrived, arrivals[self._arrived], 0.0, 0.0, 0.0)
                self._arrived += 1
            verbs = reports[told::6]
            if now_s >= until_s or not wake.isdisjoint(verbs) or (verbs and self.idle()):
                break
        if now_s == math.inf and told == len(reports):
            return now_s, rows()
        if METERED in wake:
            self._read_meter()
        return self._now_s, self._told()

    def _read_meter(self) -> None:
        """Tell what the cluster and each team have used so far."""
        for run in self._runs.items():
            self._settle(*run)
        self._power.rest(self._now_s)
        used_j = (self._power.energy_j, *self._team_j)
        for team, energy_j in enumerate(used_j, -1):
            self._reports += (METERED, team, self._now_s, 0.0, 0.0, energy_j)

    def _told(self) -> Events:
        """All that happened and was not told yet."""
        events = np.array(self._reports, dtype=np.float64).reshape(-1, 6)
        events.setflags(write=False)
        self._reports.clear()
        return events

    def apply(self, actions: Actions) -> None:
        """Start and stop, at the present time."""
        runs, now_s = self._runs, self._now_s
        changed: dict[int, bool] = {}  # jobs whose lease or company changes, not just their cap
        joining: list[tuple[int, int]] = []
        for verb, job, group, node, gpus, *settings in actions.tolist():
            if verb == RETUNE:
                runs[job].settings = tuple(settings)
                changed.setdefault(job, False)
            elif verb == POWER_OFF:
                self._switch_off(node)
            elif verb == POWER_ON:
                self._power.boot(node, now_s)
                ready_s = float(self._boundary(np.float64(now_s + self._boot_s[node])))
                heappush(self._ends, (ready_s, -1 - node, self._boots[node]))
            elif verb == STOP:
                run = runs[job]
                # Saving costs work done before another cap was set, too, as if at the present rate.
                ran_s = now_s - self._cost["stop_s"][job] - run.mark_s
                steps = max(run.saved, run.base + run.rate * ran_s)
                self._finish_lease(STOPPED, job, run, steps, changed)
            elif job in runs:
                runs[job].nodes.append(node)
                runs[job].gpus.append(gpus)
            else:
                runs[job] = _Run([node], [gpus], [job], self._done[job], now_s, tuple(settings))
                changed[job] = True
                if group != job:
                    joining.append((job, group))
        for job, group in joining:
            company = runs[job].company = runs[group].company
            company.append(job)
            changed.update(dict.fromkeys(company, True))
        self._pace(changed)

    def idle(self) -> bool:
        """Whether nothing runs and nobody is still to come."""
        return not self._runs and self._arrived == len(self._arrivals_s)

    def close(self) -> Events:
        """The energy of the whole cluster, from the first arrival until now."""
        for run in self._runs.items():
            self._settle(*run)
        self._power.rest(self._now_s)
        self._reports += (METERED, -1, self._now_s, 0.0, 0.0, self._power.energy_j)
        return self._told()

    def describe(self) -> dict[str, Any]:
        """For the header of the log."""
        overheads = {
            k: v if isinstance(v, float | int) else "per job" for k, v in vars(self.overheads).items()
        }
        faults = {k: v for k, v in asdict(self.faults).items() if math.isfinite(v)}
        return {
            "backend": "sim",
            "truth": str(self.truth),
            "quantum_s": self.quantum_s,
            "overheads": overheads,
            "faults": faults,
        }

    def steps_done(self) -> dict[int, float]:
        """What is true now, for tests: the steps of every job that holds GPUs."""
        return {job: self._steps(run, self._now_s) for job, run in self._runs.items()}

    # -- time

    def _boundary(self, at_s: Floats | np.float64) -> Floats:
        """The first moment from *at_s* on at which something may happen."""
        if self.quantum_s is None:
            return np.asarray(at_s)
        return np.asarray(np.ceil(at_s / self.quantum_s - 1e-9) * self.quantum_s)

    def _next_s(self, until_s: float) -> float:
        ends = self._ends
        while ends and ends[0][1] >= 0 and self._versions[ends[0][1]] != ends[0][2]:
            heappop(ends)
        now_s = min(
            self._arrivals_s[self._arrived] if self._arrived < len(self._arrivals_s) else math.inf,
            ends[0][0] if ends else math.inf,
            max(until_s, self._now_s),
        )
        if self.quantum_s is not None and now_s < math.inf:
            now_s = max(now_s, float(self._boundary(np.float64(now_s))))  # never just before it
        return now_s

    # -- leases

    def _steps(self, run: _Run, at_s: float) -> float:
        return run.base + run.rate * max(0.0, at_s - run.mark_s)

    def _settle(self, job: int, run: _Run) -> None:
        """Count the energy until now."""
        seconds = self._now_s - run.settled_s
        run.energy_j += run.watts * seconds
        self._team_j[self._team[job]] += run.watts * seconds
        self._power.energy_j += run.more_w * seconds
        run.settled_s = self._now_s

    def _finish_lease(self, verb: int, job: int, run: _Run, steps: float, changed: dict[int, bool]) -> None:
        self._settle(job, run)
        self._done[job] = steps
        self._gpus_before[job] = sum(run.gpus)
        self._versions[job] += 1
        del self._runs[job]
        changed.pop(job, None)
        run.company.remove(job)
        if run.company:
            changed.update(dict.fromkeys(run.company, True))
        self._reports += (verb, job, self._now_s, steps, 0.0, run.energy_j)

    def _end(self, job: int) -> None:
        """A job reaches its last step, or the step at which this attempt fails."""
        run = self._runs[job]
        changed: dict[int, bool] = {}
        if run.fails_at >= self._total[job]:
            self._finish_lease(FINISHED, job, run, self._total[job], changed)
        else:
            self._tries[job] += 1
            self._lose(LOST if self._tries[job] <= self.faults.retries else FAILED, job, run, changed)
        self._pace(changed)

    def _lose(self, verb: int, job: int, run: _Run, changed: dict[int, bool]) -> None:
        """A lease ends unasked: the job keeps what it saved last."""
        self._finish_lease(verb, job, run, self._saved(run), changed)

    def _saved(self, run: _Run) -> float:
        """Steps that a job would keep if its lease ended unasked now."""
        ran_s, every_s = self._now_s - run.clock_s, self.faults.checkpoint_s
        last_s = run.clock_s + math.floor(ran_s / every_s) * every_s
        if ran_s <= 0 or last_s < run.mark_s:  # before its mark it went at another rate: *saved* knows
            return run.saved
        return max(run.saved, self._steps(run, last_s))

    def _pace(self, changed: dict[int, bool]) -> None:
        """How fast the jobs whose lease or company changed go from now on, and when they end."""
        if not changed:
            return
        jobs = list(changed)
        runs = [self._runs[job] for job in jobs]
        now_s, power, versions, ends, reports = (
            self._now_s,
            self._power,
            self._versions,
            self._ends,
            self._reports,
        )
        for job, run, (speed, gpu_w) in zip(jobs, runs, self._forecast(jobs, runs), strict=True):
            if run.rate == 0.0:
                fresh, cost_s = True, self._start_cost(job, run)
                run.ready_s = now_s + cost_s
                if self.faults.job_failure > 0:
                    run.fails_at = self._draw_failure(job, run)
                reached = run.saved
            else:
                fresh, cost_s = False, max(0.0, run.ready_s - now_s)
                self._settle(job, run)
                reached = max(run.saved, self._steps(run, now_s))
                run.saved = reached if changed[job] else self._saved(run)
            busy_w, company = power.busy_w(run.nodes, run.gpus, gpu_w, run.settings[0]), len(run.company)
            run.watts = busy_w / company
            run.more_w = (busy_w - power.idle_w(run.nodes, run.gpus)) / company
            end_s = self._set_rate(job, run, reached, speed, cost_s, fresh)
            if changed[job]:
                run.clock_s = run.mark_s
            version = versions[job] = versions[job] + 1
            heappush(ends, (end_s, job, version))
            reports += (RAN, job, run.mark_s, run.base, run.rate, run.watts)

    def _all_as_asked(self, kind: str) -> list[tuple[float, float]]:
        """Speed and watts of a GPU of every job on the GPUs it asked for, of this kind."""
        every = np.arange(len(self.jobs), dtype=np.int64)
        return self._ask(Grants.of(every, self.jobs.gpus, kind=kind))

    def _ask(self, grants: Grants) -> list[tuple[float, float]]:
        speed: list[float] = self.truth.speed(self.jobs, grants).tolist()
        watts: list[float] = self.truth.watts(self.jobs, grants).tolist()
        return list(zip(speed, watts, strict=True))

    def _forecast(self, jobs: list[int], runs: list[_Run]) -> list[tuple[float, float]]:
        if len(jobs) == len(runs[0].nodes) == len(runs[0].company) == 1:
            job, run = jobs[0], runs[0]
            if run.gpus[0] == self._asked[job] and run.settings == _AS_ASKED:
                return [self._as_asked[self._kind[run.nodes[0]]][job]]
        sort, kinds, known = self._sort, self._kind, self._known
        keys = [
            (
                sort[job],
                sum(run.gpus),
                len(run.nodes),
                len(run.company),
                len(run.company) > 1 and self._fused(run.company),
                kinds[run.nodes[0]],
                *run.settings,
            )
            for job, run in zip(jobs, runs, strict=True)
        ]
        new = {key: job for key, job in zip(keys, jobs, strict=True) if key not in known}
        if new:
            known.update(zip(new, self._ask_anew(list(new), list(new.values())), strict=True))
        return [known[key] for key in keys]

    def _fused(self, company: list[int]) -> bool:
        """Whether jobs on the same GPUs are one array; else they are only packed."""
        keys = {self._fuse[job] for job in company}
        return len(keys) == 1 and keys != {""}

    def _ask_anew(self, keys: list[tuple[int, ...]], jobs: list[int]) -> list[tuple[float, float]]:
        _, gpus, nodes, members, fused, kind, cap_w, batch, *host = np.array(keys, dtype=np.int64).T.copy()
        return self._ask(
            Grants.of(
                np.array(jobs, dtype=np.int64),
                gpus,
                nodes,
                members=members,
                fused=fused.astype(np.bool_),
                cap_w=cap_w,
                batch=batch,
                host=np.array(host),
                kind=Labels(kind, self.nodes.kind.names),
            )
        )

    def _start_cost(self, job: int, run: _Run) -> float:
        self._starts[job] += 1
        if self._starts[job] == 1:
            return self._cost["start_s"][job]
        cost_s, rescale_s = self._cost["restart_s"][job], self._cost["rescale_s"][job]
        return cost_s + rescale_s if rescale_s and self._gpus_before[job] != sum(run.gpus) else cost_s

    def _set_rate(
        self, job: int, run: _Run, reached: float, speed: float, cost_s: float, fresh: bool
    ) -> float:
        """Set rate and mark of a run that has *reached* so many steps and loses *cost_s* first.

        Answers when it ends.
        """
        step_s, now_s = self._step_s[job] / speed, self._now_s
        goal = min(self._total[job], run.fails_at)
        if self.quantum_s is None:
            run.base, run.mark_s, run.rate = reached, now_s + cost_s, 1.0 / step_s
            return run.mark_s + (goal - run.base) * step_s
        quantum_s = self.quantum_s
        per_quantum = first = quantum_s / step_s
        lost = 0
        if cost_s > 0:
            lost = math.floor(cost_s / quantum_s)
            first = (quantum_s - (cost_s - lost * quantum_s)) / step_s
        if self._whole[job] and per_quantum >= 1:
            per_quantum, first = math.floor(per_quantum), math.floor(first)
        run.mark_s = now_s + lost * quantum_s
        run.base = reached + first - per_quantum
        run.rate = per_quantum / quantum_s
        rounds = max(int(fresh), math.ceil((goal - run.base) / per_quantum - 1e-9))
        return float(run.mark_s + rounds * quantum_s)

    # -- faults

    def _draw_failure(self, job: int, run: _Run) -> float:
        """The step at which this attempt fails; inf: it does not."""
        rng = np.random.default_rng((self.seed, 1 << 40, job, self._tries[job]))
        fails, where = rng.random(2).tolist()
        if fails >= self.faults.job_failure:
            return math.inf
        return float(run.saved + where * (self._total[job] - run.saved))

    def _break_later(self, node: int, last_s: float, from_s: float = -math.inf) -> None:
        """Let a node that broke, or would have, at *last_s* break again, but not before *from_s*."""
        while True:
            wait_s = self._node_rng[node].exponential(self.faults.node_mtbf_s)
            last_s = float(self._boundary(np.float64(last_s + wait_s)))
            if last_s >= from_s:
                break
        heappush(self._ends, (last_s, -1 - node, 0))

    def _turn_node(self, node: int, boot: int) -> None:
        """A node has booted, breaks, or is back after it broke."""
        now_s = self._now_s
        if boot > 0:
            if boot == self._boots[node]:
                self._power.back(node, now_s)
                self._reports += (NODE_BACK, node, now_s, 0.0, 0.0, 0.0)
                if node in self._spared_s:
                    self._break_later(node, self._spared_s.pop(node), now_s)
            return
        if self._power.is_off(node):
            # It goes on where the schedule was when it is up again: until then there is nothing to wait for.
            self._spared_s[node] = now_s
            return
        if not self._up[node]:
            self._up[node] = True
            self._power.back(node, now_s)
            self._reports += (NODE_BACK, node, now_s, 0.0, 0.0, 0.0)
            self._break_later(node, now_s)
            return
        changed: dict[int, bool] = {}  # not used: a whole group is lost, or nobody of it
        for job in sorted(job for job, run in self._runs.items() if node in run.nodes):
            self._lose(LOST, job, self._runs[job], changed)
        self._up[node] = False
        self._power.down(node, now_s)
        self._reports += (NODE_LOST, node, now_s, 0.0, 0.0, 0.0)
        back_s = float(self._boundary(np.float64(now_s + self.faults.node_repair_s)))
        heappush(self._ends, (back_s, -1 - node, 0))

    def _switch_off(self, node: int) -> None:
        """Nobody runs there: the core has seen to it."""
        self._boots[node] += 1
        self._power.off(node, self._now_s)
