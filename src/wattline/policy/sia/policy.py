"""Sia: goodput over kinds of GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.models.job_classes import find_unique_rows
from wattline.policy.chain import keep_reasons
from wattline.policy.elastic.capacity import Capacity, build_capacity
from wattline.policy.sia.program import GroupProgram, solve_program

_HELD, _OUTRANKED, _TOO_BIG = (
    REASONS.index(reason) for reason in (Reason.HELD, Reason.OUTRANKED, Reason.TOO_BIG)
)
_FACTOR_STEPS = 50  # restart factors are rounded, so that jobs of nearly equal age are one group
_LEAST_FACTOR = 0.02


@dataclass(frozen=True)
class Sia:
    """Goodput over kinds of GPU, by an integer program (Jayaram Subramanya et al., SOSP 2023, "Sia").

    Not checked: no results of the original could be reproduced here, because its tables carry no licence.
    Every *interval_s* each job gets one configuration, a number of GPUs of one kind, or none, such that

        min Σ_i [ Σ_j A_ij · (r_ij · U_ij)^p  +  lambda_n · (1 − Σ_j A_ij)  +  lambda_a · (changed_i) ]

    with U_ij the goodput of job i in configuration j over its least, times its fewest GPUs; for p above 0
    the first term counts with a minus. r = (T − R · *restart_s*) / (T + *restart_s*), T the age of a job and
    R its restarts, where a running job would change its configuration, else 1; work that a stop would lose
    adds to the last *restart_s*. *lambda_n* is the price of no GPUs, *lambda_a* that of a change or stop.
    Jobs with equal terms are counted and not listed, and HiGHS stops within *gap*, or after *node_limit*
    nodes of its search: the gap that is left is in the log.
    *Deviates:* goodputs are those of the models, known from the start, not learnt by profiling one GPU of
    each kind and doubling; sizes are powers of two and the request; nodes are left to the placer; r is
    rounded to 0.02 and does not count for jobs that wait, which must start anyway; decides when jobs or
    nodes come or go, at most once in an interval.
    """

    interval_s: float = 60.0
    p: float = -0.5
    lambda_a: float = 0.01
    lambda_n: float = 1.1
    restart_s: float = 30.0
    gap: float = 0.001
    node_limit: int = 200

    def __post_init__(self) -> None:
        if not 1 <= self.interval_s < math.inf:
            raise ConfigError(f"interval_s must be at least 1 and finite, got {self.interval_s}")
        if not -10 <= self.p <= 1 or self.p == 0:
            raise ConfigError(f"p must be from -10 to 1, and not 0, got {self.p}")
        for name in ("lambda_a", "lambda_n", "restart_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")
        if self.p < 0 and not self.lambda_n > 1:
            raise ConfigError(f"lambda_n must be above 1 with p below 0, or jobs wait, got {self.lambda_n}")
        if not 0 <= self.gap < 1:
            raise ConfigError(f"gap must be at least 0 and below 1, got {self.gap}")
        if not self.node_limit >= 1:
            raise ConfigError(f"node_limit must be at least 1, got {self.node_limit}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`.

        Of an earlier *plan* only the choice of jobs counts.
        """
        capacity = build_capacity(snapshot, models, plan, batches=True, by_precedence=True)
        planned = np.arange(len(snapshot.queue)) if plan is None else np.sort(plan.row)
        rows = planned[~capacity.outranked[planned]]
        number = math.floor(snapshot.now_s / self.interval_s + 1e-9)
        held_kind, batch = _find_leases(snapshot)
        note = snapshot.note
        gap, is_best = math.nan, False
        kind, gpus = held_kind[rows], capacity.held[rows]
        if not isinstance(note, IntervalNote) or note.interval < number or not (kind >= 0).any():
            options = _list_options(snapshot, capacity, rows)
            kind, gpus, batch, gap, is_best = self._decide(snapshot, capacity, rows, held_kind, options)
            note = IntervalNote(number)
        else:
            batch = batch[rows]
        runs = np.flatnonzero(kind >= 0)
        runs = runs[
            _order_for_placer(kind[runs], gpus[runs], held_kind[rows[runs]], capacity.held[rows[runs]])
        ]
        reason = np.full(len(snapshot.queue), _HELD, dtype=np.int64)
        reason[planned] = _OUTRANKED
        reason[rows[~_fit_somewhere(snapshot, capacity, rows)]] = _TOO_BIG
        reason[rows[runs]] = 0
        next_s = math.inf if is_best or not len(rows) else (number + 1) * self.interval_s
        return Plan(
            row=rows[runs],
            gpus=gpus[runs],
            group=rows[runs],
            next_decision_s=next_s if plan is None else min(next_s, plan.next_decision_s),
            batch=batch[runs] if batch.any() else None,
            reason=reason if plan is None else keep_reasons(plan, planned, reason),
            kind=kind[runs],
            gap=gap,
            note=note,
        )

    def _decide(
        self, snapshot: Snapshot, capacity: Capacity, rows: Ints, held_kind: Ints, options: RowOptions
    ) -> tuple[Ints, Ints, Ints, float, bool]:
        """Return kind (-1: none), GPUs and batch size of each of *rows*, the gap, and if all have their best.

        The best is that without the price of a change: until then, waiting a while may make it pay.
        """
        factor = self._compute_restart_factors(snapshot, rows)
        runs = capacity.held[rows] > 0
        keeps = (options.kind == held_kind[rows][:, None]) & (options.gpus == capacity.held[rows][:, None])
        changes = runs[:, None] & ~keeps
        utility = np.where(changes, factor[:, None], 1.0) * options.utility
        sign = 1.0 if self.p < 0 else -1.0
        cost = np.where(options.valid, sign * utility**self.p + self.lambda_a * changes, np.inf)
        ideal = np.where(options.valid, sign * options.utility**self.p, np.inf)
        bits = (factor * _FACTOR_STEPS).round().astype(np.int64)
        job = snapshot.queue.job[rows]
        columns = (
            capacity.configs.job_class[job, 0],
            snapshot.queue.block[QUEUE_ACCEPTED_KINDS, rows].astype(np.int64),
            held_kind[rows],
            capacity.held[rows],
            bits,
        )
        code, first = find_unique_rows(np.stack(columns, axis=1).astype(np.int64))
        # Groups by their first row and kinds by name, so that ties do not depend on how labels are numbered.
        code, first = np.argsort(np.argsort(first))[code], np.sort(first)
        by_name = np.argsort(np.array(snapshot.nodes.kind.names))
        none = self.lambda_n + self.lambda_a * runs  # a stop is a change, too
        group, option = np.nonzero(cost[first] < none[first][:, None])
        program = GroupProgram(
            members=np.bincount(code, minlength=len(first)).astype(np.int64),
            room=capacity.room[by_name],
            group=group,
            kind=np.argsort(by_name)[options.kind[option]],
            gpus=options.gpus[first[group], option],
            saved=np.asarray(none[first[group]] - cost[first[group], option], dtype=np.float64),
        )
        choice = solve_program(program, self.gap, self.node_limit)
        if not math.isfinite(choice.gap):  # nothing was found: jobs stay as they are
            chosen = np.where(runs & keeps.any(axis=1), np.argmax(keeps, axis=1), -1)
        else:
            chosen = _deal_out(code, group, option, choice.jobs)
        has = chosen >= 0
        at = (np.arange(len(rows)), np.maximum(chosen, 0))
        kind = np.where(has, options.kind[at[1]], -1)
        gpus, batch = np.where(has, options.gpus[at], 0), np.where(has, options.batch[at], 0)
        is_best = bool((has & (ideal[at] <= ideal.min(axis=1, initial=np.inf))).all())
        return kind, gpus, batch, choice.gap, is_best

    def _compute_restart_factors(self, snapshot: Snapshot, rows: Ints) -> Floats:
        """Return r of each of *rows*, rounded; 1 if it does not run."""
        queue = snapshot.queue
        age_s = snapshot.now_s - snapshot.jobs.submit_s[queue.job[rows]]
        used_s = queue.restarts[rows] * self.restart_s
        lost_s = self.restart_s + snapshot.lost_work_s[rows]
        factor = np.maximum(age_s - used_s, 0.0) / np.maximum(age_s + lost_s, 1.0)
        rounded = np.maximum(np.round(factor * _FACTOR_STEPS) / _FACTOR_STEPS, _LEAST_FACTOR)
        return np.where(queue.running[rows], np.minimum(rounded, 1.0), 1.0)


@dataclass(frozen=True)
class IntervalNote:
    """Note of a decision: the number of the interval that was decided last."""

    interval: int


class RowOptions(NamedTuple):
    """Configurations of rows of the queue: an option is a kind of GPU and the number of a size."""

    kind: Ints  # by option
    gpus: Ints  # by row and option, as all that follow
    batch: Ints
    valid: Bools
    utility: Floats  # goodput over the least of the row, times its fewest GPUs


def _list_options(snapshot: Snapshot, capacity: Capacity, rows: Ints) -> RowOptions:
    """Return the configurations in which each of *rows* can run."""
    configs, kinds = capacity.configs, len(capacity.room)
    sizes = configs.gpus.shape[1]
    by_name = np.argsort(np.array(snapshot.nodes.kind.names))
    kind, size = np.repeat(by_name, sizes), np.tile(np.arange(sizes), kinds)
    job_class = configs.job_class[snapshot.queue.job[rows]][:, kind]
    accepts = snapshot.queue.block[QUEUE_ACCEPTED_KINDS, rows].astype(np.int64)
    gpus, goodput = configs.gpus[job_class, size], configs.speed[job_class, size, -1]
    valid = (accepts[:, None] >> kind & 1 == 1) & (size < configs.size_count[job_class])
    valid &= (gpus <= capacity.room[kind]) & (goodput > 0)
    least = np.where(valid, goodput, np.inf).min(axis=1, initial=np.inf)
    fewest = np.where(valid, gpus, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    utility = np.where(valid, goodput / least[:, None] * fewest[:, None], 1.0)
    return RowOptions(kind, gpus, configs.batch[job_class, size, -1], valid, utility)


def _deal_out(code: Ints, group: Ints, option: Ints, count: Ints) -> Ints:
    """Return the option of each row (-1: none): of a group, the rows in order get its options in order."""
    chosen = np.full(len(code), -1, dtype=np.int64)
    order = np.argsort(code, kind="stable")
    begin = np.searchsorted(code[order], np.arange(int(code.max(initial=-1)) + 1))
    for one in np.flatnonzero(count).tolist():
        at = begin[group[one]]
        chosen[order[at : at + count[one]]] = option[one]
        begin[group[one]] = at + count[one]
    return chosen


def _find_leases(snapshot: Snapshot) -> tuple[Ints, Ints]:
    """Return by row of the queue the kind of GPU that it holds (-1: none) and its batch size."""
    kind = np.full(len(snapshot.queue), -1, dtype=np.int64)
    batch = np.zeros(len(snapshot.queue), dtype=np.int64)
    leases = snapshot.leases
    at = np.searchsorted(snapshot.queue.job, leases.job)
    kind[at], batch[at] = snapshot.nodes.kind.codes[leases.node], leases.batch
    return kind, batch


def _order_for_placer(kind: Ints, gpus: Ints, held_kind: Ints, held: Ints) -> Ints:
    """Return the order in which a placer finds room: jobs that stay first, then the largest."""
    return np.lexsort((-gpus, (kind != held_kind) | (gpus != held)))


def _fit_somewhere(snapshot: Snapshot, capacity: Capacity, rows: Ints) -> Bools:
    """Return whether the whole cluster has enough GPUs of a kind that each of *rows* accepts."""
    nodes, configs = snapshot.nodes, capacity.configs
    total = np.bincount(nodes.kind.codes, nodes.gpus, len(nodes.kind.names))
    least = configs.gpus[configs.job_class[snapshot.queue.job[rows]], 0]
    accepts = snapshot.queue.block[QUEUE_ACCEPTED_KINDS, rows].astype(np.int64)
    kinds = np.arange(len(total))
    return np.asarray(((accepts[:, None] >> kinds & 1 == 1) & (least <= total)).any(axis=1))
