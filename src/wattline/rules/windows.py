"""Reservations in time: which of them concern a job now, and when the next one begins or ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.rules.hostlist import find_nodes
from wattline.rules.rule_set import ReservationRule
from wattline.trace.field_parser import moment
from wattline.trace.recorded import RecordedSchedule
from wattline.units import pluralize

MOST_WINDOWS = 62
_NOT_BEGUN, _OVER = REASONS.index(Reason.RESERVATION), REASONS.index(Reason.RESERVATION_OVER)


class WindowState(NamedTuple):
    """Windows at one time: bits of those that a job must not touch, by row of the queue."""

    blocked: Ints
    next_s: float  # when a window begins or ends next


@dataclass(frozen=True, eq=False)
class ReservationWindows:
    """Reservations of one simulation; bit w of a mask is the w-th of them."""

    begin_s: Floats  # first occurrence, on the clock of the jobs
    duration_s: Floats
    every_s: Floats  # inf: it does not repeat
    node_bits: Ints  # by node
    maintenance: int  # bits
    own: Ints  # by job: bits of the reservations that it may use
    named: Ints  # by job: the reservation that it requested, -1: none
    limit_s: Floats  # by job: time limit
    notes: tuple[str, ...]

    def find_occurrences(self, now_s: float) -> tuple[Floats, Floats]:
        """Return begin and end of each reservation that is or comes next; inf: it is over."""
        with np.errstate(invalid="ignore"):
            count = np.floor((now_s - self.begin_s) / self.every_s)
            count = np.where(np.isfinite(self.every_s), np.maximum(count, 0.0), 0.0)
            begin_s = self.begin_s + np.where(count > 0, count * self.every_s, 0.0)
        over = begin_s + self.duration_s <= now_s
        begin_s = np.where(over, begin_s + self.every_s, begin_s)
        return begin_s, begin_s + self.duration_s

    def look(self, snapshot: Snapshot) -> WindowState:
        """Return the reservations that each job of the queue must not touch if it starts now.

        It must not touch one that is not its own and that begins before it ends by its time limit.
        """
        job, now_s = snapshot.queue.job, snapshot.now_s
        begin_s, end_s = self.find_occurrences(now_s)
        ends_s = now_s + np.maximum(self.limit_s[job] - snapshot.service_s, 0.0)
        blocked = np.zeros(len(job), dtype=np.int64)
        for window in np.flatnonzero(np.isfinite(begin_s)).tolist():
            hits = (ends_s > begin_s[window]) & ((self.own[job] >> window) & 1 == 0)
            blocked |= hits.astype(np.int64) << window
        times_s = np.concatenate((begin_s, end_s))
        return WindowState(blocked, float(times_s[times_s > now_s].min(initial=math.inf)))

    @cached_property
    def too_short(self) -> Ints:
        """Bits of the repeated reservations between which each job does not fit, by its time limit."""
        bits = np.zeros(len(self.limit_s), dtype=np.int64)
        for window in np.flatnonzero(np.isfinite(self.every_s)).tolist():
            gap_s = self.every_s[window] - self.duration_s[window]
            hits = (self.limit_s > gap_s) & ((self.own >> window) & 1 == 0)
            bits |= hits.astype(np.int64) << window
        return bits

    def find_never(self, jobs: Jobs, nodes: Nodes, partition_bit: Ints, node_partitions: Ints) -> Bools:
        """Return which jobs find too few GPUs outside of reservations between which they do not fit."""
        never = np.zeros(len(jobs), dtype=np.bool_)
        accepts = nodes.accepted_kinds(jobs.gpu_kind)
        keys = np.stack((self.too_short, partition_bit, accepts))
        for short, partition, kinds in np.unique(keys[:, self.too_short > 0], axis=1).T.tolist():
            usable = ((self.node_bits & short) == 0) & ((node_partitions & partition) != 0)
            room = np.bincount(nodes.kind.codes[usable], nodes.gpus[usable], len(nodes.kind.names))
            most = max((room[k] for k in range(len(room)) if (kinds >> k) & 1), default=0.0)
            alike = (keys == np.array((short, partition, kinds))[:, None]).all(axis=0)
            never |= alike & (jobs.gpus > most)
        return never

    def find_early(self, snapshot: Snapshot) -> tuple[Ints, float] | None:
        """Return the reason of each row that waits for its own reservation, and when that begins.

        0: it need not wait. None: no row has requested one.
        """
        job, now_s = snapshot.queue.job, snapshot.now_s
        named = self.named[job]
        rows = np.flatnonzero((named != -1) & ~snapshot.queue.running)
        if not len(rows):
            return None
        begin_s, _ = self.find_occurrences(now_s)
        reason = np.zeros(len(job), dtype=np.int64)
        own_begin_s = np.where(named[rows] >= 0, begin_s[np.maximum(named[rows], 0)], math.inf)
        reason[rows[np.isinf(own_begin_s)]] = _OVER
        later = np.isfinite(own_begin_s) & (own_begin_s > now_s)
        reason[rows[later]] = _NOT_BEGUN
        return reason, float(own_begin_s[later].min(initial=math.inf))


def bind_windows(
    rules: Sequence[ReservationRule],
    jobs: Jobs,
    recorded: RecordedSchedule | None,
    nodes: Nodes,
    rows: dict[str, int],
    origin_s: float | None,
    limit_s: Floats,
) -> ReservationWindows | None:
    """Return the reservations on the clock of *jobs*, for which *origin_s* is the date of time 0."""
    if not rules:
        return None
    if len(rules) > MOST_WINDOWS:
        raise ConfigError(f"rules: {len(rules)} reservations, expected at most {MOST_WINDOWS}")
    begin_s = np.array([_parse_start(rule, origin_s) for rule in rules])
    node_bits = np.zeros(len(nodes), dtype=np.int64)
    for window, rule in enumerate(rules):
        node_bits |= find_nodes(rule.nodes, nodes, rows).astype(np.int64) << window
    own, named, notes = _find_users(rules, jobs, recorded)
    return ReservationWindows(
        begin_s=begin_s,
        duration_s=np.array([rule.duration_s for rule in rules]),
        every_s=np.array([rule.every_s for rule in rules]),
        node_bits=node_bits,
        maintenance=sum(1 << window for window, rule in enumerate(rules) if rule.maintenance),
        own=own,
        named=named,
        limit_s=limit_s,
        notes=notes,
    )


def _parse_start(rule: ReservationRule, origin_s: float | None) -> float:
    try:
        return float(rule.start)
    except ValueError:
        since_1970_s = moment(rule.start)
    if math.isnan(since_1970_s):
        raise ConfigError(
            f"reservation {rule.name}: start is {rule.start!r}, expected a date or seconds after the first"
            " submission"
        )
    if origin_s is None:
        raise ConfigError(
            f"reservation {rule.name} begins at a date, and the trace has only seconds from a start",
            "give start in seconds after the first submission",
        )
    return since_1970_s - origin_s


def _find_users(
    rules: Sequence[ReservationRule], jobs: Jobs, recorded: RecordedSchedule | None
) -> tuple[Ints, Ints, tuple[str, ...]]:
    """Return the reservations that each job may use, the one that it requested, and sentences."""
    own = np.zeros(len(jobs), dtype=np.int64)
    named = np.full(len(jobs), -1, dtype=np.int64)
    admits = [_admits(rule, jobs) for rule in rules]
    words = () if recorded is None else recorded.reservation.names
    notes = []
    if not any(words):
        for window, admitted in enumerate(admits):
            own |= admitted.astype(np.int64) << window
        notes.append(
            "the trace does not record the reservations of jobs: jobs of the users and accounts of a"
            " reservation may use its nodes"
        )
        return own, named, tuple(notes)
    assert recorded is not None
    by_name = {rule.name: window for window, rule in enumerate(rules)}
    unknown = 0
    for code, word in enumerate(words):
        chosen = recorded.reservation.codes == code
        if word and word not in by_name:
            unknown += int(chosen.sum())
        elif word:
            window = by_name[word]
            allowed: Bools = chosen & admits[window]
            own |= allowed.astype(np.int64) << window
            named[allowed] = window
            named[chosen & ~admits[window]] = -2  # it never begins for them
    if unknown:
        notes.append(f"{pluralize(unknown, 'job')} ran in reservations that the rules do not state")
    return own, named, tuple(notes)


def _admits(rule: ReservationRule, jobs: Jobs) -> Bools:
    """Return which jobs are of the users or accounts of a reservation."""
    users = np.array([name in rule.users for name in jobs.user.names], dtype=np.bool_)[jobs.user.codes]
    teams = np.array([name in rule.accounts for name in jobs.team.names], dtype=np.bool_)[jobs.team.codes]
    return np.asarray(users | teams)
