"""Rules of partitions and QOS as columns by job: limits, order, and the nodes that it may use."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.reasons import REASONS, Reason
from wattline.core.table import Bools, Floats, Ints, Labels
from wattline.errors import ConfigError
from wattline.rules.rule_set import PartitionRule, PriorityRule, QosRule, RuleSet, UseLimits
from wattline.trace.recorded import RecordedSchedule
from wattline.trace.recorded_nodes import count_recorded_nodes
from wattline.units import pluralize

UNLIMITED = 1 << 60
MOST_PARTITIONS = 61
_PARTITION, _QOS = REASONS.index(Reason.PARTITION_LIMIT), REASONS.index(Reason.QOS_LIMIT)
_SCOPES = {
    "user": REASONS.index(Reason.USER_LIMIT),
    "account": REASONS.index(Reason.ACCOUNT_LIMIT),
    "group": REASONS.index(Reason.GROUP_LIMIT),
}
_CLOSED = ("DOWN", "INACTIVE", "INACT")
_NO_PARTITION = PartitionRule("")
_NO_QOS = QosRule("")


@dataclass(frozen=True, eq=False)
class UseCounters:
    """Limits of use: job i counts for the counters `of_job[:, i]`; -1: none."""

    of_job: Ints  # 2-D
    most: Ints  # by counter: jobs, GPUs
    reason: Ints
    borrow: Ints  # 1: beyond it a job runs behind all others


@dataclass(frozen=True, eq=False)
class JobRules:
    """Rules of each job, by its row."""

    partition_bit: Ints  # mask: bit 0 is every node, bit p + 1 the nodes of partition p
    never: Ints  # reason for which it never starts; 0: none
    rank: Ints  # smaller goes first
    limit_s: Floats  # time limit; inf: none
    max_nodes: Ints
    qos: Ints  # number of its QOS, or of its tier where tiers preempt
    preempts: Ints  # bits of the numbers of `qos` that it may preempt
    exempt_s: Floats  # it is not preempted before
    counters: UseCounters | None
    notes: tuple[str, ...]


class _Pair(NamedTuple):
    """A partition and a QOS that occur together; row numbers in the rules, -1: not stated."""

    partition: int
    qos: int


def bind_jobs(rules: RuleSet, jobs: Jobs, recorded: RecordedSchedule | None, counts: Ints) -> JobRules:
    """Return the rules of *jobs*; *counts* are the GPUs of each partition's nodes."""
    if len(rules.partitions) > MOST_PARTITIONS or len(rules.qos) > MOST_PARTITIONS:
        raise ConfigError(f"rules: more than {MOST_PARTITIONS} partitions or QOS, expected fewer")
    notes: list[str] = []
    partition = _number_jobs(
        "partition", [p.name for p in rules.partitions], _column(jobs, recorded, "partition"), notes
    )
    default = next((row for row, p in enumerate(rules.partitions) if p.default), -1)
    unnamed = _find_unnamed(_column(jobs, recorded, "partition"))
    if default >= 0 and unnamed.any():
        partition = np.where(unnamed, default, partition)
        notes.append(
            f"{pluralize(int(unnamed.sum()), 'job')} without a recorded partition are in"
            f" {rules.partitions[default].name}, the default"
        )
    qos = _number_jobs("QOS", [q.name for q in rules.qos], _column(jobs, recorded, "qos"), notes)
    codes, pair_of_job = np.unique((partition + 1) * (len(rules.qos) + 1) + qos + 1, return_inverse=True)
    pair_of_job = pair_of_job.reshape(-1)
    pairs = [_Pair(c // (len(rules.qos) + 1) - 1, c % (len(rules.qos) + 1) - 1) for c in codes.tolist()]
    of_pair = [_look_up(rules, pair) for pair in pairs]
    recorded_s = np.full(len(jobs), math.nan) if recorded is None else recorded.time_limit_s
    limit_s = _fill_limits(of_pair, pair_of_job, recorded_s)
    number, preempts = _find_preemption(rules, of_pair, qos, partition)
    never = _find_never(rules, of_pair, pair_of_job, jobs, recorded, limit_s, recorded_s, counts, pairs)

    def spread(value: Callable[[PartitionRule, QosRule], float]) -> Floats:
        return np.array([float(value(*one)) for one in of_pair])[pair_of_job]

    return JobRules(
        partition_bit=np.where(partition >= 0, 2 << np.maximum(partition, 0), 1),
        never=never,
        rank=_rank_pairs(rules.priority, of_pair)[pair_of_job],
        limit_s=limit_s,
        max_nodes=spread(lambda p, q: UNLIMITED if p.max_nodes is None else p.max_nodes).astype(np.int64),
        qos=number,
        preempts=preempts[pair_of_job],
        exempt_s=spread(lambda p, q: q.exempt_s),
        counters=_build_counters(rules, of_pair, pair_of_job, jobs),
        notes=tuple(notes),
    )


def _column(jobs: Jobs, recorded: RecordedSchedule | None, name: str) -> Labels:
    return Labels.repeat("", len(jobs)) if recorded is None else getattr(recorded, name)


def _find_unnamed(column: Labels) -> Bools:
    empty = np.array([not name for name in column.names], dtype=np.bool_)
    return np.asarray(empty[column.codes])


def _number_jobs(what: str, names: Sequence[str], column: Labels, notes: list[str]) -> Ints:
    """Return the number of each job's partition or QOS among *names*; -1: it is not stated."""
    if not names:
        return np.full(len(column), -1, dtype=np.int64)
    rows = {name: row for row, name in enumerate(names)}
    # A job that was submitted to several partitions lists them; it ran in the first that had room.
    found = [next((rows[w] for w in name.split(",") if w in rows), -1) for name in column.names]
    numbers = np.array(found, dtype=np.int64)[column.codes]
    used = np.unique(column.codes).tolist()
    absent = sorted(column.names[code] for code in used if column.names[code] and found[code] < 0)
    if absent and not any(found[code] >= 0 for code in used):
        raise ConfigError(
            f"rules: no job is in a {what} that they state ({', '.join(names[:8])}); jobs are in"
            f" {', '.join(absent[:8])}",
            hint="are these the rules of the cluster that the trace records?",
        )
    if absent:
        count = int((numbers[~_find_unnamed(column)] < 0).sum())
        shown = ", ".join(absent[:5]) + (", ..." if len(absent) > 5 else "")
        notes.append(f"{pluralize(count, 'job')} of the {what} {shown}, without rules, have no limits")
    return numbers


def _look_up(rules: RuleSet, pair: _Pair) -> tuple[PartitionRule, QosRule]:
    partition = rules.partitions[pair.partition] if pair.partition >= 0 else _NO_PARTITION
    return partition, rules.qos[pair.qos] if pair.qos >= 0 else _NO_QOS


def _fill_limits(
    of_pair: Sequence[tuple[PartitionRule, QosRule]], pair_of_job: Ints, recorded_s: Floats
) -> Floats:
    """Return the time limits of jobs; one without gets the default of its partition, else the largest."""
    default_s = np.array(
        [
            min(p.max_time_s, q.max_wall_s) if math.isnan(p.default_time_s) else p.default_time_s
            for p, q in of_pair
        ]
    )[pair_of_job]
    return np.where(np.isfinite(recorded_s), recorded_s, default_s)


def _find_never(
    rules: RuleSet,
    of_pair: Sequence[tuple[PartitionRule, QosRule]],
    pair_of_job: Ints,
    jobs: Jobs,
    recorded: RecordedSchedule | None,
    limit_s: Floats,
    recorded_s: Floats,
    counts: Ints,
    pairs: Sequence[_Pair],
) -> Ints:
    """Return the reason for which a job never starts by the limits of its partition and QOS; 0: none."""
    never = np.zeros(len(jobs), dtype=np.int64)
    nodes = np.zeros(len(jobs), dtype=np.int64) if recorded is None else count_recorded_nodes(recorded)
    asked_s = np.where(np.isfinite(recorded_s), limit_s, 0.0)
    for number, ((partition, qos), pair) in enumerate(zip(of_pair, pairs, strict=True)):
        rows = np.flatnonzero(pair_of_job == number)
        limits_qos = next((q for q in rules.qos if q.name == partition.qos), _NO_QOS)
        first, second = (qos, limits_qos) if qos.over_partition else (limits_qos, qos)
        most = first.max_gpus if first.max_gpus is not None else second.max_gpus
        wall_s = first.max_wall_s if math.isfinite(first.max_wall_s) else second.max_wall_s
        gpus = jobs.gpus[rows]
        bad_qos = (asked_s[rows] > wall_s) | (gpus < max(first.min_gpus, second.min_gpus))
        if most is not None:
            bad_qos |= gpus > most
        bad = (asked_s[rows] > partition.max_time_s) | (gpus < partition.min_gpus)
        bad |= (nodes[rows] > 0) & (nodes[rows] < partition.min_nodes)
        if partition.max_gpus is not None:
            bad |= gpus > partition.max_gpus
        if partition.max_nodes is not None:
            bad |= nodes[rows] > partition.max_nodes
        if pair.partition >= 0:
            bad |= gpus > counts[pair.partition]
        if partition.state.upper() in _CLOSED:
            bad[:] = True
        bad |= _find_refused(jobs.team, rows, partition.allow_accounts, partition.deny_accounts)
        name = qos.name
        if name and (name in partition.deny_qos or (partition.allow_qos and name not in partition.allow_qos)):
            bad[:] = True
        never[rows] = np.where(bad, _PARTITION, np.where(bad_qos, _QOS, 0))
    return never


def _find_refused(labels: Labels, rows: Ints, allow: Sequence[str], deny: Sequence[str]) -> Bools:
    refused = np.array([name in deny or bool(allow and name not in allow) for name in labels.names])
    return np.asarray(refused[labels.codes[rows]], dtype=np.bool_)


def _rank_pairs(priority: PriorityRule | None, of_pair: Sequence[tuple[PartitionRule, QosRule]]) -> Ints:
    """Return the rank of each pair: by tier, then by priority with its weights; 0 goes first."""
    tier = np.array([p.priority_tier for p, _ in of_pair], dtype=np.float64)
    qos = np.array([q.priority for _, q in of_pair], dtype=np.float64)
    factor = np.array([p.priority_job_factor for p, _ in of_pair], dtype=np.float64)
    weights = (None, None) if priority is None else (priority.weight_qos, priority.weight_partition)
    if weights == (None, None):
        keys = [-factor, -qos, -tier]
    else:
        total = (weights[0] or 0.0) * qos / max(qos.max(initial=0.0), 1.0)
        total = total + (weights[1] or 0.0) * factor / max(factor.max(initial=0.0), 1.0)
        keys = [-total, -tier]
    table = np.stack(keys[::-1], axis=1)
    return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _find_preemption(
    rules: RuleSet, of_pair: Sequence[tuple[PartitionRule, QosRule]], qos: Ints, partition: Ints
) -> tuple[Ints, Ints]:
    """Return the number by which a job can be preempted, and by pair the numbers that it may preempt."""
    mode = "qos" if rules.priority is None else rules.priority.preempt
    if mode == "qos":
        row = {one.name: number + 1 for number, one in enumerate(rules.qos)}
        masks = [sum(1 << row[name] for name in q.preempts if name in row) for _, q in of_pair]
        return qos + 1, np.array(masks, dtype=np.int64)
    if mode == "partition":
        tiers = sorted({p.priority_tier for p in rules.partitions})
        level = {tier: number + 1 for number, tier in enumerate(tiers)}
        by_partition = np.array([0, *(level[p.priority_tier] for p in rules.partitions)], dtype=np.int64)
        masks = [
            sum(1 << number for tier, number in level.items() if p.name and tier < p.priority_tier)
            for p, _ in of_pair
        ]
        return by_partition[partition + 1], np.array(masks, dtype=np.int64)
    return np.zeros(len(qos), dtype=np.int64), np.zeros(len(of_pair), dtype=np.int64)


def _choose_limits(rules: RuleSet, partition: PartitionRule, qos: QosRule) -> list[tuple[str, UseLimits]]:
    """Return the limits that hold for a job, with the name of what counts for them.

    Those of the partition's QOS go before those of the job's own, unless that has the flag OverPartQOS.
    """
    found = [(f"partition {partition.name}", partition.limits)] if partition.name else []
    own = (f"qos {qos.name}", qos.limits)
    part = next((q for q in rules.qos if q.name == partition.qos), None)
    if part is None:
        return [*found, own]
    first, second = (own, (f"qos {part.name}", part.limits))
    if not qos.over_partition:
        first, second = second, first
    rest = {
        name: None if getattr(first[1], name) is not None else value
        for name, value in vars(second[1]).items()
        if name != "borrow"
    }
    return [*found, first, (second[0], UseLimits(**rest, borrow=second[1].borrow))]


def _build_counters(
    rules: RuleSet, of_pair: Sequence[tuple[PartitionRule, QosRule]], pair_of_job: Ints, jobs: Jobs
) -> UseCounters | None:
    """Return the counters of all limits of use; None: there are none."""
    numbers: dict[tuple[str, str, int], int] = {}
    limits: list[tuple[int, int, int, int]] = []
    columns: list[list[tuple[Ints, Ints]]] = []  # by pair: rows and counters
    owners = {"user": jobs.user.codes, "account": jobs.team.codes, "group": np.zeros(len(jobs), np.int64)}
    for number, (partition, qos) in enumerate(of_pair):
        rows = np.flatnonzero(pair_of_job == number)
        found = []
        for source, limit in _choose_limits(rules, partition, qos):
            for scope, reason in _SCOPES.items():
                most_jobs, most_gpus = (getattr(limit, f"{scope}_{what}") for what in ("jobs", "gpus"))
                if most_jobs is None and most_gpus is None:
                    continue
                codes, of_row = np.unique(owners[scope][rows], return_inverse=True)
                ids = []
                for owner in codes.tolist():
                    key = (source, scope, owner)
                    if key not in numbers:
                        numbers[key] = len(numbers)
                        limits.append(
                            (
                                UNLIMITED if most_jobs is None else most_jobs,
                                UNLIMITED if most_gpus is None else most_gpus,
                                reason,
                                int(limit.borrow),
                            )
                        )
                    ids.append(numbers[key])
                found.append((rows, np.array(ids, dtype=np.int64)[of_row.reshape(-1)]))
        columns.append(found)
    if not numbers:
        return None
    of_job = np.full((max(map(len, columns)), len(jobs)), -1, dtype=np.int64)
    for found in columns:
        for line, (counted, numbered) in enumerate(found):
            of_job[line, counted] = numbered
    max_jobs, max_gpus, reason_of, borrow = (np.array(c, dtype=np.int64) for c in zip(*limits, strict=True))
    return UseCounters(of_job, np.stack((max_jobs, max_gpus)), reason_of, borrow)
