"""This machine: leases are processes here, and time is the time of day.

The folder of a job is the truth about its processes (see `work` and `launch`): who opens the same folder
again finds what still runs, and what ended meanwhile.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wattline.backend.engine.energy_ledger import ALL, Tally
from wattline.backend.engine.exit_policy import Fate, verdict
from wattline.backend.engine.initial_state import there
from wattline.backend.engine.job_record import Life, Run
from wattline.backend.engine.job_spec import Given, attempts
from wattline.backend.engine.job_table import Rows
from wattline.backend.engine.local.attempt import Attempt, Exit
from wattline.backend.engine.local.cgroups import Limits
from wattline.backend.engine.local.gpu_allocator import Seats
from wattline.backend.engine.local.launcher import Started, found, start
from wattline.backend.engine.local.machine import Machine
from wattline.backend.engine.mailbox import Bell
from wattline.backend.engine.progress import Progress
from wattline.backend.engine.recurring_jobs import Recurrences
from wattline.core.actions import RETUNE, STOP, Actions
from wattline.core.events import (
    ARRIVED,
    EVERY_EVENT,
    FAILED,
    FINISHED,
    LOST,
    METERED,
    RAN,
    STOPPED,
    Event,
    Events,
    rows,
)
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.snapshot import Snapshot
from wattline.errors import WattlineError

LOOK_S = 1.0
"""Between two looks at what jobs tell of themselves."""
_TELL_S = 10.0  # between two reports of one job to the policy, unless its speed is another
_OTHER_SPEED = 0.1
_BACK_OFF_S = (5.0, 30.0, 120.0, 600.0)
_REST = 4.0  # times as long as a decision took, until the next
_LEAST_REST_S, _MOST_REST_S = 0.02, 1.0
_GONE_S = 5.0
_UNTOLD_S = 0.2  # where the kernel does not tell when a process ends

Hear = Callable[[str, str, dict[str, Any]], None]
"""Is told what happens to a job: `started`, `retuned`, `stopped`, `retry`, `ended`."""


class Local:
    """Runs jobs on the GPUs of this machine; see `wattline.core.protocols.Backend`.

    Jobs come by `submit`, from any thread; *hear* is told what becomes of them. It is idle when nobody is
    left, unless it *stays*.
    """

    def __init__(
        self,
        root: str | Path,
        gpus: str = "auto",
        *,
        clock: Callable[[], float] = time.time,
        hear: Hear = lambda kind, job, what: None,
        tell: Callable[[str], None] = lambda text: None,
        stays: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.root = Path(root).resolve()
        self.root.mkdir(parents=True, exist_ok=True)
        self.machine = Machine.open(gpus, self.root)
        self.nodes: Nodes = self.machine.nodes
        self.lives: dict[str, Life] = {}
        self._clock, self._hear, self._tell, self._stays = clock, hear, tell, stays
        self._now_s = clock()
        self._rows = Rows(self.nodes)
        self._later: dict[str, Life] = {}  # who is to come back to the queue
        self._runs: list[Run] = []
        self._of: dict[str, Run] = {}  # the run that a job is in, and was not told to leave
        self._told: list[Event] = []
        self._tally = Tally()
        self._seats = Seats(self.machine.meter, self.root / "caps", tell)
        # Several services of one machine must not share the names of their cgroups.
        own = hashlib.sha256(str(self.root).encode()).hexdigest()[:8]
        self._limits = Limits(parent=f"wattline-{own}") if limits is None else limits
        self._limits_method = self._limits.method
        self._recurrences = Recurrences(self.root / "memory.db", self.machine, tell)
        self._bell = Bell()
        self._closing = False
        self._woke_s, self._worked_s = time.monotonic(), time.thread_time()

    # -- from any thread

    def submit(self, lives: Iterable[Life]) -> None:
        """Somebody new, or somebody who may run again."""
        self._bell.ask("submit", list(lives))

    def cancel(self, job: str) -> None:
        """End a job: at once if it waits, else it is told to stop, and killed after its grace."""
        self._bell.ask("cancel", job)

    def prioritise(self, job: str, priority: float) -> None:
        """Let a job that waits take its place anew."""
        self._bell.ask("prioritise", (job, priority))

    def withdraw(self, job: str) -> None:
        """Take a job that waits out of the queue; `submit` brings it back."""
        self._bell.ask("withdraw", job)

    def leave(self) -> None:
        """Let `wait` answer that nothing will happen any more; jobs run on."""
        self._bell.ask("leave")

    # -- the Backend protocol

    @property
    def jobs(self) -> Jobs:
        """All who have a row in the present table."""
        return self._rows.jobs

    def wait(self, until_s: float, wake: frozenset[int] = EVERY_EVENT) -> tuple[float, Events]:
        """Sleep until one of *wake* has happened, at most until *until_s*.

        Decisions leave most of the time to others: who comes shortly after one waits for the next together
        with whoever else comes.
        """
        self._rest()
        while True:
            self._hear_requests()
            if self._closing:
                self._closing = False
                return math.inf, rows()
            self._look()
            verbs = {event.verb for event in self._told}
            over = verbs and not self._runs  # nothing else will happen for a while
            if self._now() >= until_s or not wake.isdisjoint(verbs) or over:
                break
            if not self._runs and not self._stays and not self._due() and until_s == math.inf:
                break
            self._sleep(until_s)
        if METERED in wake:
            self._read_meter()
        events = rows(*self._told)
        self._told.clear()
        self._woke_s, self._worked_s = time.monotonic(), time.thread_time()
        return self._now_s, events

    def _rest(self) -> None:
        worked_s = time.thread_time() - self._worked_s
        over_s = self._woke_s + min(max(_REST * worked_s, _LEAST_REST_S), _MOST_REST_S)
        while not self._closing and (left_s := over_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LEAST_REST_S))

    def busy_s(self) -> float:
        """How long ago `wait` answered."""
        return time.monotonic() - self._woke_s

    def apply(self, actions: Actions) -> None:
        """Stop and start processes, and set caps and shares of those that go on."""
        starting: dict[int, list[tuple[str, int, tuple[int, ...], int]]] = {}
        for verb, row, group, node, gpus, *settings in actions.tolist():
            job = self._rows.ids[row] if row >= 0 else ""
            if verb == STOP:
                self._stop(job)
            elif verb == RETUNE:
                self._retune(self._of[job], settings)
            elif row >= 0:
                starting.setdefault(group, []).append((job, gpus, tuple(settings), node))
        for members in starting.values():
            self._begin(members)
        self._start_those_who_can()

    def idle(self) -> bool:
        """Whether nobody is left, and nobody may come."""
        return not self.lives and not self._stays and self._bell.silent

    def close(self) -> Events:
        """The last readings; processes run on, and caps are put back."""
        self._read_meter()
        events = rows(*self._told)
        self._told.clear()
        for run in self._runs:
            self._forget_pidfd(run)
        self._seats.close()
        self._recurrences.close()
        self._bell.close()
        return events

    def describe(self) -> dict[str, Any]:
        """For the header of a log."""
        return {
            "backend": "local",
            "gpus": self.machine.text,
            "energy": self._seats.method,
            "limits": self._limits_method,
        }

    # -- going on from where another process was

    def adopt(self, lives: Iterable[Life]) -> None:
        """Jobs that were there before: find what runs, and what has ended."""
        for life in lives:
            self.lives[life.id] = life
        taken: set[Path] = set()
        for life in list(self.lives.values()):
            folders = attempts(self.root, life.id)
            if not folders or life.id in self._of or int(folders[-1].name) <= life.closed:
                continue
            other = found(folders[-1])
            if other is None or other.folder in taken:
                continue
            taken.add(other.folder)
            self._go_on_with(other)

    def _go_on_with(self, other: Started) -> None:
        """An attempt of another process: it runs, has ended, or never will run."""
        attempt = Attempt(other.folder)
        state = attempt.state()
        if state == "new" and attempt.void():
            return
        if state == "void":
            return
        jobs = [job for job in other.jobs if job in self.lives]
        if not jobs:
            return
        if max(other.given.gpus) >= len(self.machine.meter.gpus):
            self._tell(f"jobs {', '.join(jobs)} ran on GPUs that are gone: they are ended, and start again")
            attempt.kill()
            attempt.wait(_GONE_S)
            attempt.kill_leftovers()
            for life in (self.lives[job] for job in jobs):
                self._hear("stopped", life.id, self._facts(life, None, None, "Its GPUs are gone."))
            return
        run = Run(jobs, other.node, other.given, other.at_s, attempt, attempt.pidfd())
        run.array = len(other.jobs) > 1
        run.told = {job: Progress(path) for job, path in other.events.items() if job in jobs}
        self._runs.append(run)
        self._seats.take(jobs, other.given.gpus, other.readings, len(other.jobs))
        if state == "running":
            self._seats.cap(other.given.gpus, other.given.cap_w)
        for life in (self.lives[job] for job in jobs):
            self._of[life.id] = run
            self._tally.add(life.team, -(self._seats.used_j(life.id) or 0.0))  # it was read before
            number = int(other.events[life.id].parent.name)
            if life.starts < number:  # whoever started it could not say so any more
                life.starts = number
                life.first_s = other.at_s if math.isnan(life.first_s) else life.first_s
                self._hear("started", life.id, self._started(run, life, other.cpus))

    def begins(self, seed: int = 0) -> Snapshot:
        """A new table of those who are there, and the state in which they hold what they hold."""
        now_s = self._now()
        queued = sorted(
            (life for life in self.lives.values() if life.due_s <= now_s), key=lambda life: life.submit_s
        )
        self._rows.clear()
        for life in self.lives.values():
            life.row = -1
        self._later = {life.id: life for life in self.lives.values() if life.due_s > now_s}
        self._rows.enter(queued)
        self._told = []
        for run in self._runs:
            run.said = (-math.inf, 0.0)
        held = [(run, job) for run in self._runs for job in run.jobs if self._holds(run, job)]
        running = [self._ran(run, job) for run, job in held]
        return there(self.jobs, self.nodes, now_s, queued, self._leases(), running, seed)

    def _holds(self, run: Run, job: str) -> bool:
        return self._of.get(job) is run and job in self.lives and self.lives[job].row >= 0

    def _leases(self) -> Leases:
        columns: list[tuple[int, ...]] = []
        for run in self._runs:
            mine = [self.lives[job].row for job in run.jobs if self._holds(run, job)]
            g = run.given
            knobs = (len(g.gpus), g.cap_w, g.batch, g.mcpus, g.mem_mib, 0)
            columns += [(row, min(mine), run.node, *knobs) for row in mine]
        block = np.array(sorted(columns), dtype=np.int64).reshape(-1, 9).T
        return Leases(np.ascontiguousarray(block))

    # -- requests

    def _hear_requests(self) -> None:
        new: list[Life] = []
        for what, of in self._bell.answer():
            if what == "submit":
                new += of
                continue
            self._enter_due(new)
            new = []
            if what == "cancel":
                self._cancel(of)
            elif what == "withdraw":
                self._withdraw(of)
            elif what == "prioritise":
                self._prioritise(*of)
            else:
                self._closing = True
        self._enter_due(new)

    def _enter_due(self, lives: list[Life]) -> None:
        now_s = self._now()
        lives = [life for life in lives if life.id not in self.lives]  # nobody is there twice
        for life in lives:
            self.lives[life.id] = life
            if life.due_s > now_s:
                self._later[life.id] = life
        self._enter([life for life in lives if life.due_s <= now_s and life.row < 0])

    def _enter(self, lives: list[Life]) -> None:
        """New rows of the table, and their arrivals."""
        self._rows.enter(lives)
        for life in lives:
            self._later.pop(life.id, None)
            self._told.append(Event(ARRIVED, life.row, self._now_s))

    def _cancel(self, job: str) -> None:
        life = self.lives.get(job)
        if life is None:
            self._hear("gone", job, {})  # held back, or over
            return
        life.cancelled = True
        runs = [run for run in self._runs if job in run.jobs and run.attempt is not None]
        for run in runs:
            self._end(run, job, "cancel")
        if not runs:
            self._over(life, "CANCELLED", "It was cancelled before it started.")

    def _end(self, run: Run, job: str, why: str) -> None:
        """End a job that runs; an array goes on without it, as soon as it has seen the word."""
        assert run.attempt is not None
        if len(run.jobs) == 1:
            run.why = why
            run.attempt.stop()
        else:
            run.leaving[job] = why
            with suppress(OSError):
                (run.told[job].path.parent / "cancel").touch()

    def _withdraw(self, job: str) -> None:
        life = self.lives.get(job)
        if life is not None and self._only_waits(job):
            self._say(FAILED, life, 0.0)
            life.row = -1
            del self.lives[job]
            self._later.pop(job, None)

    def _only_waits(self, job: str) -> bool:
        """Whether a job has no process; one that waits for its GPUs only gives them back."""
        runs = [run for run in self._runs if job in run.jobs]
        if any(run.attempt is not None for run in runs):
            return False
        for run in runs:
            self._leave_run(run, job)
        return True

    def _prioritise(self, job: str, priority: float) -> None:
        life = self.lives.get(job)
        if life is None:
            return
        life.asks = {**life.asks, "priority": priority}
        if life.row >= 0 and self._only_waits(job):
            self._say(FAILED, life, 0.0)
            life.row = -1
            self._enter([life])

    # -- starting and stopping

    def _begin(self, members: list[tuple[str, int, tuple[int, ...], int]]) -> None:
        """Somebody is to start: an array if they may be one, else each by itself on the same GPUs."""
        keys = {self.lives[job].fuse for job, *_ in members}
        _, count, (cap_w, batch, mcpus, mem_mib, _), node = members[0]
        held = {gpu for run in set(self._of.values()) for gpu in run.given.gpus}
        gpus = self._seats.choose(count, self.machine.gpus_of(node), held)
        given = Given(gpus, cap_w, batch, mcpus, mem_mib)
        jobs = [job for job, *_ in members]
        together = [jobs] if len(keys) == 1 and keys != {""} else [[job] for job in jobs]
        for some in together:
            run = Run(list(some), node, given, self._now_s)
            self._runs.append(run)
            for job in some:
                self._of[job] = run

    def _start_those_who_can(self) -> None:
        """Start whoever waits only for GPUs, or an earlier process of its own, that are free by now."""
        for run in [run for run in self._runs if run.attempt is None]:
            busy = {gpu for other in self._runs if other.attempt and other.why for gpu in other.given.gpus}
            own = any(other is not run and set(other.jobs) & set(run.jobs) for other in self._runs)
            if own or not busy.isdisjoint(run.given.gpus):
                continue
            self._launch(run)

    def _launch(self, run: Run) -> None:
        lives = [self.lives[job] for job in run.jobs]
        try:
            run.given = self._recurrences.chosen(lives[0].work, run.given)
            run.given = replace(run.given, cap_w=_least(run.given.cap_w, lives[0].work.power_w))
            self._seats.cap(run.given.gpus, run.given.cap_w)
            self._seats.take(run.jobs, run.given.gpus)
            readings = self._seats.readings(run.given.gpus)
            begun = start(
                self.root, self.machine, self._limits, lives, run.node, run.given, self._now_s, readings
            )
        except (OSError, WattlineError) as error:
            for life in lives:
                self._leave_run(run, life.id)
                self._blame(life, "NODE_FAIL", f"It could not be started: {error}")
            return
        run.attempt = Attempt(begun.folder)
        run.pidfd = run.attempt.pidfd()
        run.since_s = self._now_s
        run.told = {job: Progress(path) for job, path in begun.events.items()}
        run.array = len(lives) > 1
        for life in lives:
            life.starts = int(begun.events[life.id].parent.name)
            life.first_s = self._now_s if math.isnan(life.first_s) else life.first_s
            self._hear("started", life.id, self._started(run, life, begun.cpus))
            self._told.append(self._ran(run, life.id))

    def _started(self, run: Run, life: Life, cpus: int) -> dict[str, Any]:
        """What is told of a start."""
        return {
            "attempt": life.starts,
            "gpus": list(run.given.gpus),
            "kind": self.machine.kind_of(run.node),
            "cap_w": run.given.cap_w,
            "batch": run.given.batch,
            "cpus": cpus,
            "with": [job for job in run.jobs if job != life.id],
        }

    def _stop(self, job: str) -> None:
        """A policy wants the GPUs back."""
        run = self._of[job]
        if run.attempt is None:
            self._leave_run(run, job)
            life = self.lives[job]
            self._say(STOPPED, life, life.done)
            return
        del self._of[job]
        if not any(self._of.get(other) is run for other in run.jobs):
            run.why = run.why or "stop"
            run.attempt.stop()

    def _retune(self, run: Run, settings: list[int]) -> None:
        cap_w, batch, mcpus, mem_mib, _ = settings
        cap_w = _least(cap_w, self.lives[run.jobs[0]].work.power_w)
        if cap_w != run.given.cap_w:
            self._seats.cap(run.given.gpus, cap_w)
        run.given = Given(run.given.gpus, cap_w, batch, mcpus, mem_mib)
        if run.attempt is not None:
            name, node = run.attempt.folder.parent.parent.name, run.node
            cores, memory = self.machine.share(node, run.given)
            self._limits.retune(name, cores, memory)
            for job in run.jobs:
                self._hear("retuned", job, {"cap_w": cap_w, "cpus": len(cores)})

    def _leave_run(self, run: Run, job: str) -> None:
        """A job is in this run no more."""
        life, used_j = self.lives[job], self._seats.leave(job)
        life.energy_j = None if used_j is None or life.energy_j is None else life.energy_j + used_j
        life.service_s += max(self._now_s - run.since_s, 0.0)
        self._tally.add(life.team, used_j or 0.0)
        run.jobs.remove(job)
        if self._of.get(job) is run:
            del self._of[job]
        if not run.jobs:
            self._runs.remove(run)
            self._forget_pidfd(run)
            if not any(set(other.given.gpus) & set(run.given.gpus) for other in self._runs):
                self._seats.cap(run.given.gpus, 0)

    # -- what happens

    def _look(self) -> None:
        now_s = self._now()
        for run in list(self._runs):
            if run.attempt is None:
                continue
            state = run.attempt.state()
            if state == "running":
                if now_s - run.looked_s >= LOOK_S:
                    self._look_at(run)
            else:
                self._ended(run, run.attempt.exit() if state == "ended" else None)
        self._start_those_who_can()
        due = [life for life in self._later.values() if life.due_s <= now_s]
        self._enter(due)

    def _look_at(self, run: Run) -> None:
        """What a run tells of itself."""
        run.looked_s = self._now_s
        self._seats.settle()
        run.watts = self._seats.watts(run.given.gpus)
        for job, progress in list(run.told.items()):
            if job not in run.jobs or not progress.look():
                continue
            if run.array and progress.ended:
                self._member_ended(run, job)
                continue
            if not self._holds(run, job):
                continue
            most_j, used_j = self.lives[job].work.max_joules, self._seats.used_j(job)
            if most_j is not None and (used_j or 0.0) + (self.lives[job].energy_j or 0.0) > most_j:
                self._end(run, job, "budget")
            rate = progress.rate or 0.0
            told_s, told = run.said
            other = rate > 0 and abs(rate - told) > _OTHER_SPEED * max(told, 1e-12)
            if rate > 0 and (self._now_s - told_s >= _TELL_S or (other and self._now_s - told_s >= LOOK_S)):
                run.said = self._now_s, rate
                self._told.append(self._ran(run, job))

    def _ran(self, run: Run, job: str) -> Event:
        life, progress = self.lives[job], run.told.get(job)
        fraction = life.done if progress is None or progress.fraction is None else progress.fraction
        per_s = self._rows.rate(life, None if progress is None else progress.rate)
        steps = self._rows.steps(life, fraction)
        watts = self._seats.watts(run.given.gpus)
        sharing = sum(len(other.jobs) for other in self._runs if other.given.gpus == run.given.gpus)
        return Event(RAN, life.row, self._now_s, steps, per_s, (watts or 0.0) / max(sharing, 1))

    def _say(self, verb: int, life: Life, fraction: float) -> None:
        if life.row >= 0:
            steps = self._rows.steps(life, fraction)
            self._told.append(Event(verb, life.row, self._now_s, steps, 0.0, life.energy_j or 0.0))

    def _member_ended(self, run: Run, job: str) -> None:
        """A member of an array is over while the array goes on."""
        life, progress = self.lives[job], run.told[job]
        self._leave_run(run, job)
        if run.leaving.get(job) == "budget":
            self._over(life, "FAILED", "It has used all of its own energy budget.", told=progress)
        elif progress.ended == "cancelled":
            self._over(life, "CANCELLED", "It was cancelled while its array ran.", told=progress)
        elif progress.ended == "failed":
            self._over(life, "FAILED", "Its member of the array failed.", told=progress)
        else:
            self._over(life, "SUCCEEDED", "", told=progress)

    def _ended(self, run: Run, exit: Exit | None) -> None:
        """Processes are over: what becomes of who was in them."""
        assert run.attempt is not None
        if exit is None:
            run.attempt.kill_leftovers()
        self._limits.release(run.attempt.folder.parent.parent.name)
        for job in list(run.jobs):
            progress = run.told[job]
            progress.look()
            if run.array and progress.ended:
                self._member_ended(run, job)
            else:
                self._job_ended(run, self.lives[job], exit)

    def _job_ended(self, run: Run, life: Life, exit: Exit | None) -> None:
        progress, before = run.told[life.id], life.done
        life.done = max(life.done, progress.saved)
        held, lasted_s = self._of.get(life.id) is run, self._now_s - run.since_s
        self._leave_run(run, life.id)
        said = verdict(life, run, exit, held=held, progressed=life.done > before, lasted_s=lasted_s)
        if run.array:
            life.fuse = ""  # one bad member must not take the others down again
        if said.fate is Fate.OVER:
            self._over(life, said.state, said.message, exit, progress)
        elif said.fate in (Fate.WAITS, Fate.LOST):
            self._hear("stopped", life.id, self._facts(life, progress, exit, said.message))
            self._say(STOPPED if said.fate is Fate.WAITS else LOST, life, life.done)
        elif said.fate is Fate.LATER:
            self._try_again(life, said.message, exit, progress)
        else:
            self._blame(life, said.state, said.message, exit, progress)

    def _blame(
        self,
        life: Life,
        state: str,
        message: str,
        exit: Exit | None = None,
        progress: Progress | None = None,
    ) -> None:
        """One try less; after the last it is over."""
        life.kills += 1
        if life.kills > life.work.retries:
            self._over(life, state, f"{message} It was tried {life.kills} times.".strip(), exit, progress)
        else:
            self._try_again(life, message, exit, progress)

    def _try_again(self, life: Life, message: str, exit: Exit | None, progress: Progress | None) -> None:
        """Out of the queue for a while, the longer the more often."""
        life.due_s = self._now_s + _BACK_OFF_S[min(max(life.kills - 1, 0), len(_BACK_OFF_S) - 1)]
        facts = self._facts(life, progress, exit, message)
        self._hear("retry", life.id, {**facts, "kills": life.kills, "due_s": life.due_s, "fuse": life.fuse})
        self._say(FAILED, life, life.done)
        life.row = -1
        self._later[life.id] = life

    def _over(
        self,
        life: Life,
        state: str,
        message: str,
        exit: Exit | None = None,
        told: Progress | None = None,
    ) -> None:
        """A job leaves for good."""
        for run in [run for run in self._runs if life.id in run.jobs and run.attempt is None]:
            self._leave_run(run, life.id)  # it was to start again
        self._hear("ended", life.id, {"state": state, **self._facts(life, told, exit, message)})
        if told is not None and life.work.group:
            self._recurrences.ended(life.work, told, state == "SUCCEEDED")
        self._say(
            FINISHED if state == "SUCCEEDED" else FAILED, life, 1.0 if state == "SUCCEEDED" else life.done
        )
        life.row = -1
        self.lives.pop(life.id, None)
        self._later.pop(life.id, None)

    def _facts(
        self, life: Life, progress: Progress | None, exit: Exit | None, message: str
    ) -> dict[str, Any]:
        """What is known of a job when an attempt is over."""
        facts: dict[str, Any] = {
            "message": message,
            "done": life.done,
            "service_s": life.service_s,
            "energy_j": life.energy_j,
            "method": self._seats.method,
        }
        if exit is not None:
            facts |= {"code": exit.code, "signal": exit.signal, "fired": exit.fired}
        if progress is not None:
            facts |= {"metrics": progress.metrics, "batch": progress.batch, "found_cap_w": progress.cap_w}
        return facts

    # -- time and energy

    def _now(self) -> float:
        self._now_s = max(self._now_s, self._clock())
        return self._now_s

    def _due(self) -> list[float]:
        return [life.due_s for life in self._later.values()]

    def _sleep(self, until_s: float) -> None:
        """Until somebody asks something, a process ends, or it is time to look."""
        next_s = min([until_s, *self._due(), *([self._now_s + LOOK_S] if self._runs else [])])
        timeout_s = max(next_s - self._now(), 0.0)
        fds = [run.pidfd for run in self._runs if run.pidfd is not None]
        if any(run.attempt is not None and run.pidfd is None for run in self._runs):
            timeout_s = min(timeout_s, _UNTOLD_S)
        self._bell.sleep(timeout_s, fds)

    def _read_meter(self) -> None:
        """Tell what all GPUs and each team have used."""
        used_j, now_s = self._tally.read(*self._using()), self._now()
        for number, name in enumerate((ALL, *self.jobs.team.names), -1):
            self._told.append(Event(METERED, number, now_s, 0.0, 0.0, used_j.get(name, 0.0)))

    def _using(self) -> tuple[float, list[tuple[str, float]]]:
        self._seats.settle()
        lives = [self.lives[job] for run in self._runs for job in run.jobs]
        return self._seats.since_j() or 0.0, [(one.team, self._seats.used_j(one.id) or 0.0) for one in lives]

    def count_from(self, before_j: Mapping[str, float]) -> None:
        """What was used before we began, by team and in all."""
        self._tally.count_from(before_j)

    def zero_meter(self) -> None:
        """Count from now on."""
        self._tally.zero(*self._using())

    def _forget_pidfd(self, run: Run) -> None:
        if run.pidfd is not None:
            os.close(run.pidfd)
            run.pidfd = None

    def view(self, job: str) -> dict[str, Any]:
        """How a job that runs is doing, for people; empty: it does not run. From any thread."""
        run = self._of.get(job)
        progress = None if run is None else run.told.get(job)
        if run is None or progress is None:
            return {}
        return {
            "fraction": progress.fraction,
            "metrics": dict(progress.metrics),
            "energy_j": self._seats.used_j(job),
            "method": self._seats.method,
            "power_w": None if run.watts is None else run.watts / max(len(run.jobs), 1),
            "gpus": list(run.given.gpus),
            "cap_w": run.given.cap_w or progress.cap_w,
            "batch": run.given.batch or progress.batch,
            "with": [other for other in run.jobs if other != job],
        }


def _least(cap_w: int, power_w: float | None) -> int:
    """The tighter of a policy's cap and its owner's, of which either may be none."""
    return min((round(w) for w in (cap_w, power_w) if w), default=0)
