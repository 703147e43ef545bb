"""Why a job is where it is, what is expected of it, and what would change that.

What is expected is decided by the same policy for the same queue, in a simulation that goes on from now.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wattline.backend.sim.simulator import Overheads, Sim
from wattline.core.actions import START
from wattline.core.events import FAILED, FINISHED
from wattline.core.grants import Grants
from wattline.core.host_share import with_shares
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.protocols import Policy
from wattline.core.queue import ASKED, Queue
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.jobfile import JobFile
from wattline.loop.run import Turn, turns
from wattline.loop.state import Decision, advance, begin, resume
from wattline.policy.knobs import turned
from wattline.service.controller import Controller
from wattline.service.http import schemas as shapes
from wattline.service.states import LIVE
from wattline.service.storage.projection import Folded
from wattline.service.submission import accept
from wattline.units import show_seconds

_MOST_TURNS = 4000
_MOST_S = 2.0  # of looking ahead
_MOST_AHEAD = 2000  # jobs of the queue that are looked at


def reason_of(controller: Controller, job: Folded) -> str:
    """One sentence."""
    if job.state not in LIVE:
        done = "It has done all its work." if job.state == "SUCCEEDED" else f"Its exit code was {job.code}."
        return job.message or done
    if job.held:
        return "Its owner, or an operator, holds it back."
    if job.cancelled:
        return "It was asked to end, and has not ended yet."
    if job.state == "RUNNING":
        return ""
    if job.due_s is not None and job.due_s > controller.clock():
        return f"{job.message} It is tried again in {show_seconds(job.due_s - controller.clock())}.".strip()
    reason = _reason(controller, job.id)
    return "Nobody has looked at it yet." if reason is Reason.NONE else reason.value


def _reason(controller: Controller, job: str) -> Reason:
    turn, life = controller.turn, controller.local.lives.get(job)
    if turn is None or life is None:
        return Reason.NONE
    place = np.flatnonzero(turn.state.queue.job == life.row)
    return REASONS[int(turn.placement.reason[place[0]])] if len(place) else Reason.NONE


def explain(controller: Controller, job: Folded) -> shapes.Explanation:
    """The dominant reason, what shows it, and what would change it."""
    turn, life = controller.turn, controller.local.lives.get(job.id)
    waits = job.state == "PENDING" and not job.held and turn is not None and life is not None
    reason = _reason(controller, job.id)
    held = job.held and job.state == "PENDING"
    code = reason.name.lower() if waits else "held" if held else job.state.lower()
    evidence, expected, changes = _facts(job), None, list[shapes.What]()
    if turn is not None and life is not None and life.row >= 0:
        there = np.flatnonzero(turn.state.queue.job == life.row)
        if len(there):
            place = int(there[0])
            evidence += _evidence(controller, turn, place) if waits else []
            future = _Future.of(controller, turn, place)
            expected = future.look("as things are")
            changes = future.others() if waits else []
    return shapes.Explanation(
        job=job.id,
        state=job.state,  # type: ignore[arg-type]
        code=code,
        reason=reason_of(controller, job) or ("It is running." if job.state == "RUNNING" else ""),
        evidence=evidence,
        expected=expected,
        changes=changes,
        epoch=controller.epoch,
        decided_s=None if turn is None else turn.state.now_s,
    )


def _facts(job: Folded) -> list[str]:
    facts = []
    if job.starts:
        facts.append(f"It was started {job.starts} time{'s' if job.starts > 1 else ''}.")
    if job.kills:
        facts.append(f"It was killed {job.kills} time{'s' if job.kills > 1 else ''}.")
    if job.given.get("with"):
        facts.append(f"It is trained as one array with {len(job.given['with'])} others.")
    if job.given.get("cap_w"):
        facts.append(f"Its GPUs have a power cap of {job.given['cap_w']:g} W.")
    if job.code not in (None, 0):
        facts.append(f"Its exit code was {job.code}.")
    return facts


def _evidence(controller: Controller, turn: Turn, place: int) -> list[str]:
    """What shows why it waits."""
    state = turn.state
    asked = int(state.queue.block[ASKED, place])
    waiting = ~state.queue.running
    before = int(np.count_nonzero(waiting[:place]))
    said = [
        f"It asks for {asked} GPU{'s' if asked > 1 else ''}; "
        f"{int(state.free.sum())} of {int(state.nodes.gpus.sum())} are free.",
        f"{int(np.count_nonzero(waiting))} jobs wait, {before} of them came before it;"
        f" {int(np.count_nonzero(state.queue.running))} run.",
    ]
    said += [f"The energy budget is {text}." for text in controller.budgets()]
    return said


@dataclass(frozen=True)
class _Future:
    """What would come of a snapshot, for one job of it, under a policy."""

    controller: Controller
    state: Snapshot
    row: int  # of the job in the table
    policy: Policy

    @classmethod
    def of(cls, controller: Controller, turn: Turn, place: int) -> _Future:
        """From the present state: the first of the queue, the job, and all who run."""
        state = _now(controller)
        keep = state.queue.running.copy()
        keep[:_MOST_AHEAD] = True
        row = int(turn.state.queue.job[place])
        at = int(np.searchsorted(state.queue.job, row))
        keep[at] = True
        state, rows = _only(state, np.flatnonzero(keep))
        return cls(controller, state, int(np.flatnonzero(rows == row)[0]), controller.policy)

    def look(self, what: str) -> shapes.What:
        """When it starts and ends, on what."""
        controller, state = self.controller, self.state
        sim = Sim(
            state.jobs, state.nodes, controller.models, overheads=Overheads(restart_s=1.0), begins=state
        )
        until = time.monotonic() + _MOST_S
        held = state.leases.job == self.row
        starts_s: float | None = state.now_s if held.any() else None
        gpus, cap_w = int(state.leases.gpus[held].sum()), int(state.leases.cap_w[held].max(initial=0))
        kind = state.nodes.kind.word(int(state.leases.node[held][0])) if held.any() else ""
        ends_s, drawn_j = None, 0.0
        models: Any = controller.models
        for number, turn in enumerate(turns(sim, self.policy, models, controller.place, state)):
            mine = turn.events[turn.events[:, 1] == self.row]
            for verb, _, at_s, _, _, energy in mine.tolist():
                if verb in (FINISHED, FAILED):
                    ends_s, drawn_j = at_s, energy
            for action in turn.actions[turn.actions[:, 1] == self.row].tolist():
                if action[0] == START and starts_s is None:
                    starts_s, gpus, cap_w = turn.state.now_s, action[4], action[5]
                    kind = state.nodes.kind.word(action[3])
            if ends_s is not None or number > _MOST_TURNS or time.monotonic() > until:
                break
        energy_j = drawn_j or None
        return shapes.What(
            what=what,
            starts_s=starts_s,
            ends_s=ends_s,
            gpus=gpus or int(state.jobs.gpus[self.row]),
            kind=kind,
            cap_w=cap_w or None,
            energy_j=energy_j if ends_s is not None else None,
            text=_sentence(what, starts_s, ends_s, state.now_s),
        )

    def others(self) -> list[shapes.What]:
        """Other wishes and rules under which it would start at another time."""
        asked = int(self.state.jobs.gpus[self.row])
        ways: list[tuple[str, Callable[[], _Future]]] = [
            (f"with {n} GPU{'s' if n > 1 else ''}", lambda n=n: self._asking(gpus=n))  # type: ignore[misc]
            for n in sorted({max(asked // 2, 1), 1} - {asked})
        ]
        top = float(self.state.jobs.priority.max())
        if self.state.jobs.priority[self.row] <= top:
            ways.append((f"with priority {top + 1:g}", lambda: self._asking(priority=top + 1)))
        if self.controller.budgets():
            free = turned(self.policy, "budgets", ())
            ways.append(("without the energy budget", lambda: replace(self, policy=free)))
        return [way().look(what) for what, way in ways]

    def _slower(self, gpus: int) -> float:
        """How many times as long a step takes on so many GPUs as on those that were asked for."""
        one = np.array([self.row])
        grants = Grants.of(one, np.array([gpus]), kind=self.state.nodes.kind.word(0))
        return 1.0 / float(self.controller.models.speed(self.state.jobs, grants)[0])

    def _asking(self, **columns: float) -> _Future:
        """The same if the job had asked for something else."""
        jobs, block = self.state.jobs, self.state.queue.block.copy()
        changed = {}
        if "gpus" in columns:  # what it asks for is what its steps were timed with
            step_s = float(jobs.step_s[self.row]) * self._slower(int(columns["gpus"]))
            columns = {**columns, "step_s": step_s, "min_gpus": 0, "max_gpus": 0}
        for name, value in columns.items():
            column = getattr(jobs, name).copy()
            column[self.row] = value
            changed[name] = column
        if "gpus" in columns:
            place = int(np.searchsorted(self.state.queue.job, self.row))
            if place < len(self.state.queue):  # else it is still to come
                block[ASKED, place] = columns["gpus"]
        state = replace(self.state, jobs=replace(jobs, **changed), queue=Queue(block))
        return replace(self, state=state)


def _sentence(what: str, starts_s: float | None, ends_s: float | None, now_s: float) -> str:
    if starts_s is None:
        return f"{what}: it does not start within what was looked at"
    begin = "it runs" if starts_s <= now_s else f"it starts at {_clock(starts_s)}"
    if starts_s > now_s:
        begin += f" (in {show_seconds(starts_s - now_s)})"
    return f"{what}: {begin}" + ("" if ends_s is None else f" and ends at {_clock(ends_s)}")


def _clock(at_s: float) -> str:
    try:
        then, now = time.localtime(at_s), time.localtime()
    except (OverflowError, ValueError, OSError):
        return "no time that a clock can show"
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%Y-%m-%d %H:%M", then)


def _now(controller: Controller) -> Snapshot:
    """How things are: the last decision, done, and the time that has passed since."""
    now_s, turn, nothing = controller.clock(), controller.turn, np.empty((0, 6))
    if turn is None:  # nobody has come yet
        nodes = controller.local.nodes
        empty = begin(Jobs.of(submit_s=[], gpus=[], duration_s=[]), nodes)
        return replace(empty, now_s=now_s)
    state = turn.state
    decision = Decision(turn.placement, turn.actions)
    return advance(state, decision, now_s, nothing, state.jobs, state.nodes.accepts(state.jobs.gpu_kind))


def _only(state: Snapshot, places: Any) -> tuple[Snapshot, Any]:
    """A snapshot of some places of the queue only, in a table of their own; and which rows these were."""
    block = state.queue.block[:, places].copy()
    rows = block[0].astype(np.int64)
    block[0] = np.arange(len(rows))
    leases = state.leases.block.copy()
    for line in (0, 1):
        leases[line] = np.searchsorted(rows, leases[line])
    jobs = state.jobs.take(rows)
    return (
        resume(jobs, state.nodes, state.seed, state.now_s, Queue(block), Leases(leases), state.meter),
        rows,
    )


def plan(controller: Controller, job: JobFile, user: str, workdir: str) -> shapes.Plan:
    """When a job would start if it was submitted now, on what, and what else could be asked for."""
    made = accept(job, user, workdir)
    state = _now(controller)
    places = np.arange(min(len(state.queue), _MOST_AHEAD))
    running = np.flatnonzero(state.queue.running)
    state, _ = _only(state, np.union1d(places, running))
    one = made[0]
    asks = {name: [value] for name, value in one.asks.items()}
    asks["deadline_s"] = [one.asks["deadline_s"] or float("inf")]
    new = with_shares(Jobs.of(id=["new"], submit_s=[state.now_s], fuse=[""], **asks), state.nodes)
    asked = job.resources.gpu_range[1]
    has = int(state.nodes.gpus.max())
    total = int(state.nodes.gpus.sum())
    accepted = state.nodes.accepts(new.gpu_kind)[0] != 0
    notes = [f"it is a sweep of {len(made)} jobs: this is of the first"] if len(made) > 1 else []
    if one.fuse:
        notes.append("its members may be trained as one array")
    if controller.local.machine.simulated:
        notes.append("GPUs are simulated here")
    feasible = accepted and asked <= total
    if not accepted:
        kinds = ", ".join(state.nodes.kind.names)
        notes.append(f"no GPU here is {' or '.join(job.resources.gpu_types)}: there are {kinds}")
    elif asked > total:
        notes.append(f"it asks for {asked} GPUs and there are {total}")
    if not feasible:
        return shapes.Plan(jobs=len(made), feasible=False, expected=None, alternatives=[], notes=notes)

    jobs = state.jobs.plus(new) if len(state.jobs) else new
    there = resume(jobs, state.nodes, state.seed, state.now_s, state.queue, state.leases, state.meter)
    future = _Future(controller, there, len(jobs) - 1, controller.policy)

    def with_gpus(count: int) -> shapes.What:
        asking = future if count == asked else future._asking(gpus=count)
        return asking.look(f"with {count} GPU{'s' if count > 1 else ''}")

    counts = sorted({n for n in (1, 2, 4, 8, has, asked) if n <= total and n != asked})
    return shapes.Plan(
        jobs=len(made),
        feasible=True,
        expected=with_gpus(asked),
        alternatives=[with_gpus(n) for n in counts[:4]],
        notes=notes,
    )
