"""Gavel: policies for clusters of several kinds of GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from wattline.core.grants import Grants
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError, did_you_mean
from wattline.policy.chain import keep_reasons, plan_as_requested
from wattline.policy.gavel.objectives import (
    OBJECTIVES,
    ShareProblem,
    compute_isolated_throughputs,
    compute_shares,
)
from wattline.policy.gavel.round_note import RoundNote

_SPEEDS = ("by_kind", "equal")
_HELD, _OUTRANKED, _TOO_BIG = (
    REASONS.index(reason) for reason in (Reason.HELD, Reason.OUTRANKED, Reason.TOO_BIG)
)


@dataclass(frozen=True)
class Gavel:
    """Target shares of each kind of GPU, followed in rounds (Narayanan et al., OSDI 2020, "Gavel").

    *objective* `maxmin` is fair in throughput, `ftf` in finish times, `makespan` ends the last job early, and
    `fifo` serves in order of submission on the fastest kind that is free. *speeds* `by_kind` uses the
    throughput of each job on each kind, `equal` takes all kinds to be equally fast. Shares are computed when
    jobs or nodes have come or gone, at most every *reset_s*. In each round of *round_s*, jobs are served by
    share / time received since the shares were computed, for one kind of GPU after the other: the fastest
    first, or in random order with equal speeds. GPUs of a job that ends idle until the round is over, and a
    new job waits for the next one. A job keeps its GPUs until it has saved a checkpoint in its round.
    Of equal priorities one is drawn, the same until the next shares; jobs that came since go last.
    *Deviates:* rounds start at multiples of *round_s*, or when a job comes to an empty queue; no pairs of
    jobs on the same GPUs; the weight of a job is 1. Where several shares are optimal, HiGHS chooses another
    than the original's interior point method.
    """

    objective: Literal["maxmin", "ftf", "makespan", "fifo"] = "maxmin"
    speeds: Literal["by_kind", "equal"] = "by_kind"
    round_s: float = 360.0
    reset_s: float = 1920.0

    def __post_init__(self) -> None:
        for name, known in (("objective", OBJECTIVES), ("speeds", _SPEEDS)):
            word = getattr(self, name)
            if word not in known:
                raise ConfigError(
                    f"{name} must be one of {', '.join(known)}, got {word!r}", did_you_mean(str(word), known)
                )
        if not 1 <= self.round_s < math.inf:
            raise ConfigError(f"round_s must be at least 1 and finite, got {self.round_s}")
        if not self.reset_s >= 0:
            raise ConfigError(f"reset_s must be at least 0, got {self.reset_s}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`.

        Of an earlier *plan* only the choice of jobs counts.
        """
        plan = plan_as_requested(snapshot) if plan is None else plan
        rows = np.sort(plan.row)
        held_kind = _find_held_kinds(snapshot)[rows]
        note = self._update_note(snapshot, rows, held_kind)
        number = math.floor(snapshot.now_s / self.round_s + 1e-9)
        kind = held_kind
        if note.round < number or not (held_kind >= 0).any():
            steps_s, possible = _predict_throughputs(snapshot, models, rows)
            if self.speeds == "equal":
                steps_s = np.broadcast_to(steps_s.max(axis=1, initial=0.0)[:, None], steps_s.shape)
            note = self._compute_shares(snapshot, rows, note, steps_s, possible)
            kind = self._serve(snapshot, rows, note, steps_s, possible)
            note = replace(note, round=number)
        runs = np.flatnonzero(kind >= 0)
        reason = np.full(len(snapshot.queue), _HELD, dtype=np.int64)
        reason[rows] = np.where(_fits_somewhere(snapshot, rows), _OUTRANKED, _TOO_BIG)
        reason[rows[runs]] = 0
        return Plan(
            row=rows[runs],
            gpus=snapshot.queue.requested_gpus[rows[runs]],
            group=rows[runs],
            next_decision_s=min(plan.next_decision_s, (number + 1) * self.round_s) if len(rows) else math.inf,
            reason=keep_reasons(plan, rows, reason),
            kind=kind[runs],
            note=note,
        )

    def _update_note(self, snapshot: Snapshot, rows: Ints, held_kind: Ints) -> RoundNote:
        """Return the note for the jobs of the queue, with the time that they have received until now."""
        note = snapshot.note
        kinds = len(snapshot.nodes.kind.names)
        if not isinstance(note, RoundNote) or note.share.shape[1] != kinds:
            note = RoundNote.start(kinds)
        job, left = snapshot.queue.job[rows], snapshot.steps_left[rows]
        note = note.align(job, self.round_s / 2, left)
        since_s = np.maximum(snapshot.queue.since_s[rows], note.at_s)
        running = np.flatnonzero(held_kind >= 0)
        received_s = note.received_s.copy()
        received_s[running, held_kind[running]] += np.maximum(snapshot.now_s - since_s[running], 0.0)
        return replace(note, at_s=snapshot.now_s, received_s=received_s)

    def _compute_shares(
        self, snapshot: Snapshot, rows: Ints, note: RoundNote, steps_s: Floats, possible: Bools
    ) -> RoundNote:
        """Return the note with new shares, if jobs or nodes have come or gone and the last are old enough."""
        young = note.reset_s > 0 and snapshot.now_s - note.reset_s < self.reset_s
        room = _count_gpus(snapshot, snapshot.usable)
        same = np.array_equal(note.job, note.computed_for) and np.array_equal(room, note.room)
        if same or young:
            return note
        left = snapshot.steps_left[rows]
        isolated_s = note.isolated_s + (note.steps_left - left) / note.isolated_steps_s
        can = np.flatnonzero(possible.any(axis=1))
        problem = ShareProblem(
            steps_s=steps_s[can],
            possible=possible[can],
            gpus=snapshot.queue.requested_gpus[rows[can]].astype(np.float64),
            weight=np.ones(len(can)),
            steps_left=left[can],
            age_s=snapshot.now_s - snapshot.jobs.submit_s[snapshot.queue.job[rows[can]]],
            isolated_s=isolated_s[can],
            room=room.astype(np.float64),
            equal_speeds=self.speeds == "equal",
        )
        share, isolated_steps_s = np.zeros_like(note.share), np.full(len(rows), np.inf)
        if self.objective == "fifo":
            share[can] = self._queue_up(snapshot, rows[can], problem)
        else:
            share[can] = compute_shares(problem, self.objective)
        isolated_steps_s[can] = compute_isolated_throughputs(problem)
        return replace(
            note,
            reset_s=snapshot.now_s,
            computed_for=note.job,
            room=room,
            share=share,
            received_s=np.full_like(note.received_s, self.round_s / 2),
            isolated_s=isolated_s,
            isolated_steps_s=isolated_steps_s,
            steps_left=left,
        )

    def _queue_up(self, snapshot: Snapshot, rows: Ints, problem: ShareProblem) -> Floats:
        """Return a share of 1 on one kind for running jobs, then in order of submission while GPUs last."""
        held_kind, room = _find_held_kinds(snapshot)[rows], problem.room.copy()
        share = np.zeros_like(problem.steps_s)
        for row in np.argsort(held_kind < 0, kind="stable").tolist():
            kind = int(held_kind[row])
            if kind < 0:
                fits = problem.possible[row] & (room >= problem.gpus[row])
                if not fits.any():
                    break
                kind = int(np.argmax(np.where(fits, problem.steps_s[row], -1.0)))
            room[kind] -= problem.gpus[row]
            share[row, kind] = 1.0
        return share

    def _order_kinds(self, snapshot: Snapshot, steps_s: Floats, possible: Bools) -> list[int]:
        """Return the kinds of GPU in the order in which they are filled."""
        if self.speeds == "equal":
            rng = np.random.default_rng((snapshot.seed, _as_seed(snapshot.now_s)))
            return [int(kind) for kind in rng.permutation(steps_s.shape[1])]
        relative = (
            np.where(possible, steps_s, 0.0) / np.maximum(steps_s.max(axis=1, initial=0.0), 1e-300)[:, None]
        )
        return [int(kind) for kind in np.argsort(-relative.sum(axis=0), kind="stable")]

    def _serve(
        self, snapshot: Snapshot, rows: Ints, note: RoundNote, steps_s: Floats, possible: Bools
    ) -> Ints:
        """Return the kind of GPU of each row in this round; -1: none."""
        gpus: list[int] = snapshot.queue.requested_gpus[rows].tolist()
        priority = note.share / note.received_s
        job = snapshot.queue.job[rows]
        drawn = np.random.default_rng((snapshot.seed, _as_seed(note.reset_s))).random(
            int(job.max(initial=-1)) + 1
        )
        room: list[int] = _count_gpus(snapshot, snapshot.usable).tolist()
        kind = np.where(snapshot.unsaved[rows], _find_held_kinds(snapshot)[rows], -1)
        for row in np.flatnonzero(kind >= 0).tolist():
            room[kind[row]] -= gpus[row]
        for k in self._order_kinds(snapshot, steps_s, possible):
            tie = np.where(priority[:, k] > 0, drawn[job], 0.0)
            for row in np.lexsort((tie, -priority[:, k])).tolist():
                if room[k] <= 0:
                    break
                if kind[row] >= 0 or not possible[row, k] or gpus[row] > room[k]:
                    continue
                if self.objective == "fifo" and priority[row, k] <= 0:
                    continue
                room[k] -= gpus[row]
                kind[row] = k
        return kind


def _as_seed(at_s: float) -> int:
    """Return milliseconds, which a random generator can start from."""
    return round(1000 * max(at_s, 0.0)) if math.isfinite(at_s) else 0


def _find_held_kinds(snapshot: Snapshot) -> Ints:
    """Return by row of the queue the kind of GPU that it holds; -1: it waits."""
    kind = np.full(len(snapshot.queue), -1, dtype=np.int64)
    leases = snapshot.leases
    kind[np.searchsorted(snapshot.queue.job, leases.job)] = snapshot.nodes.kind.codes[leases.node]
    return kind


def _count_gpus(snapshot: Snapshot, here: Bools) -> Ints:
    """Return the number of GPUs of each kind on the nodes *here*."""
    nodes = snapshot.nodes
    counts = np.bincount(nodes.kind.codes[here], nodes.gpus[here], len(nodes.kind.names))
    return counts.astype(np.int64)


def _accepts(snapshot: Snapshot, rows: Ints) -> Bools:
    """Return whether each of *rows* accepts each kind."""
    masks = snapshot.queue.block[QUEUE_ACCEPTED_KINDS, rows].astype(np.int64)
    return np.asarray(masks[:, None] >> np.arange(len(snapshot.nodes.kind.names)) & 1 == 1)


def _fits_somewhere(snapshot: Snapshot, rows: Ints) -> Bools:
    """Return whether the cluster has enough GPUs of a kind that each of *rows* accepts."""
    total = _count_gpus(snapshot, np.ones(len(snapshot.nodes), dtype=np.bool_))
    fits = total >= snapshot.queue.requested_gpus[rows][:, None]
    return np.asarray((fits & _accepts(snapshot, rows)).any(axis=1))


def _predict_throughputs(snapshot: Snapshot, models: Models, rows: Ints) -> tuple[Floats, Bools]:
    """Return steps per second of each of *rows* on each kind, and where it can run."""
    jobs, queue = snapshot.jobs, snapshot.queue
    job, gpus, names = queue.job[rows], queue.requested_gpus[rows], snapshot.nodes.kind.names
    possible = _accepts(snapshot, rows) & (_count_gpus(snapshot, snapshot.usable) >= gpus[:, None])
    steps_s = np.zeros((len(rows), len(names)))
    for kind, name in enumerate(names):
        here = np.flatnonzero(possible[:, kind])
        if len(here):
            speed = models.speed(jobs, Grants.of(job[here], gpus[here], kind=name))
            steps_s[here, kind] = speed / jobs.step_s[job[here]]
    return steps_s, possible
