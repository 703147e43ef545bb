"""GPU time that users and teams have used, in buckets of an hour.

The buckets are enough to derive a usage that decays with any half-life, and the use of the last seven days.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from wattline.core.events import EVENT_AT_S, EVENT_JOB, EVENT_VERB, FAILED, FINISHED, LOST, Events
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.table import Bools, Floats, Ints

BUCKET_S = 3600.0
KEPT_S = 56 * 86_400.0
"""Age at which buckets are dropped: eight half-lives of a week, of which 0.4 % would be left."""

Account = tuple[str, str]
"""Team and user; either may be empty."""


@dataclass(frozen=True, eq=False, slots=True)
class UsageHistory:
    """Buckets that are over, oldest first: their start, their end, and GPU-seconds by bucket and account."""

    from_s: Floats
    to_s: Floats
    gpu_s: Floats  # 2-D


@dataclass(frozen=True, eq=False, slots=True)
class Usage:
    """GPU-seconds of each account until *now_s*: buckets that are over, and one that is filled.

    An account is charged from the time at which it first holds GPUs. Jobs that share GPUs share the charge.
    """

    accounts: tuple[Account, ...]
    history: UsageHistory
    open_from_s: float  # start of the bucket that is filled
    open_gpu_s: Floats  # by account
    now_s: float

    @classmethod
    def empty(cls, now_s: float = 0.0) -> Usage:
        """Return the usage without any account."""
        history = UsageHistory(np.empty(0), np.empty(0), np.empty((0, 0)))
        return cls((), history, _bucket_start(now_s), np.empty(0), now_s)

    @classmethod
    def from_rows(cls, rows: list[tuple[float, float, str, str, float]], now_s: float) -> Usage:
        """Build it from rows of start, end, team, user and GPU-seconds, in any order."""
        open_from_s = _bucket_start(now_s)
        accounts = tuple(sorted({(team, user) for _, _, team, user, _ in rows}))
        spans = sorted({(a, b) for a, b, _, _, _ in rows if a < open_from_s and b > now_s - KEPT_S})
        gpu_s, open_gpu_s = np.zeros((len(spans), len(accounts))), np.zeros(len(accounts))
        column = {account: number for number, account in enumerate(accounts)}
        line = {span: number for number, span in enumerate(spans)}
        for from_s, to_s, team, user, used in sorted(rows):
            if from_s >= open_from_s:
                open_gpu_s[column[team, user]] += used
            elif (from_s, to_s) in line:
                gpu_s[line[from_s, to_s], column[team, user]] += used
        ends = np.array(spans, dtype=np.float64).reshape(-1, 2)
        history = UsageHistory(np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1]), gpu_s)
        return cls(accounts, history, open_from_s, open_gpu_s, now_s)

    def as_rows(self) -> list[list[Any]]:
        """Return rows of start, end, team, user and GPU-seconds, without those that are 0."""
        history, rows = self.history, list[list[Any]]()
        for line, column in zip(*np.nonzero(history.gpu_s), strict=True):
            span = [float(history.from_s[line]), float(history.to_s[line])]
            rows.append([*span, *self.accounts[column], float(history.gpu_s[line, column])])
        end_s = self.open_from_s + BUCKET_S
        for column in np.flatnonzero(self.open_gpu_s).tolist():
            rows.append([self.open_from_s, end_s, *self.accounts[column], float(self.open_gpu_s[column])])
        return rows

    def decayed_gpu_s(self, half_life_s: float) -> Floats:
        """Return the GPU-seconds of each account, each halved for every *half_life_s* since it was used."""
        total = np.zeros(len(self.accounts))
        if len(self.history.to_s):
            age_s = self.now_s - float(self.history.to_s[-1])
            closed = _decay_history(self.history, half_life_s)
            total[: len(closed)] = closed * 2.0 ** (-age_s / half_life_s)
        middle_s = (self.open_from_s + self.now_s) / 2
        return np.asarray(total + self.open_gpu_s * 2.0 ** ((middle_s - self.now_s) / half_life_s))

    def last_used_s(self) -> Floats:
        """Return the end of the last bucket in which each account held GPUs; now, if it is filled."""
        last_s = np.full(len(self.accounts), -math.inf)
        if len(self.history.to_s):
            found = _find_last_use(self.history)
            last_s[: len(found)] = found
        return np.where(self.open_gpu_s > 0, self.now_s, last_s)

    def recent_gpu_s(self, window_s: float) -> Floats:
        """Return the GPU-seconds of each account in the last *window_s*; buckets count in proportion."""
        from_s, to_s, gpu_s = self._buckets()
        start_s = self.now_s - window_s
        part = np.clip((to_s - start_s) / np.maximum(to_s - from_s, 1e-9), 0.0, 1.0)
        return np.asarray(part @ gpu_s)

    def find_time_below(self, columns: Bools, limit_gpu_s: float, window_s: float) -> float:
        """Return when the accounts of *columns* are below a limit in a window if they use nothing more."""
        from_s, to_s, gpu_s = self._buckets()
        used = gpu_s[:, columns].sum(axis=1)
        total = float(used.sum())
        if limit_gpu_s <= 0:
            return math.inf
        if total < limit_gpu_s or not len(used):
            return self.now_s
        at = int(np.searchsorted(np.cumsum(used), total - limit_gpu_s, side="right"))
        at = min(at, len(used) - 1)
        before = float(np.cumsum(used)[at] - used[at])
        part = 0.0 if used[at] <= 0 else min(max((total - limit_gpu_s - before) / used[at], 0.0), 1.0)
        return float(from_s[at] + part * (to_s[at] - from_s[at]) + window_s)

    def _buckets(self) -> tuple[Floats, Floats, Floats]:
        """Return start, end and GPU-seconds of all buckets, with the one that is filled as the last."""
        history = self.history
        return (
            np.append(history.from_s, self.open_from_s),
            np.append(history.to_s, self.now_s),
            np.vstack((_widen(history.gpu_s, len(self.accounts)), self.open_gpu_s)),
        )


def charge(usage: Usage, jobs: Jobs, leases: Leases, events: Events, now_s: float) -> Usage:
    """Return *usage* at *now_s*, if *leases* were held since and ended with the *events* that say so."""
    since_s = usage.now_s
    if now_s <= since_s:
        return usage
    if not len(leases):
        return _fill(usage, now_s, np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))
    pair, names = number_accounts(jobs)
    of_lease = pair[leases.job]
    accounts = usage.accounts
    column = find_columns(names, accounts)[of_lease]
    if (column < 0).any():
        # In the order of the leases, which a replay repeats; the numbers of names may differ there.
        new = dict.fromkeys(names[number] for number in of_lease[column < 0].tolist())
        accounts = (*accounts, *new)
        column = find_columns(names, accounts)[of_lease]
        open_gpu_s = np.concatenate((usage.open_gpu_s, np.zeros(len(new))))
        usage = Usage(accounts, usage.history, usage.open_from_s, open_gpu_s, since_s)
    end_s = np.full(len(leases), now_s)
    verbs = events[:, EVENT_VERB]
    for event in events[(verbs == LOST) | (verbs == FINISHED) | (verbs == FAILED)].tolist():
        low, high = np.searchsorted(leases.job, (event[EVENT_JOB], event[EVENT_JOB] + 1))
        end_s[low:high] = min(max(event[EVENT_AT_S], since_s), now_s)
    return _fill(usage, now_s, column, leases.gpus / count_members(leases), end_s)


def count_members(leases: Leases) -> Ints:
    """Return the number of jobs that share the GPUs of each lease."""
    if (leases.job == leases.group).all():
        return np.ones(len(leases), dtype=np.int64)
    group, number, count = np.unique(leases.group, return_inverse=True, return_counts=True)
    led = np.bincount(number[leases.job == leases.group], minlength=len(group))
    return np.asarray((count // np.maximum(led, 1))[number])


def _fill(usage: Usage, now_s: float, column: Ints, gpus: Floats, end_s: Floats) -> Usage:
    """Add *gpus* from the usage's time until *end_s* to the accounts of *column*, and go on to *now_s*."""
    count, since_s = len(usage.accounts), usage.now_s
    open_from_s, open_gpu_s = usage.open_from_s, usage.open_gpu_s
    closed: list[tuple[float, Floats]] = []
    while True:
        until_s = min(open_from_s + BUCKET_S, now_s)
        if len(column):
            held_s = np.maximum(np.minimum(end_s, until_s) - since_s, 0.0)
            open_gpu_s = open_gpu_s + np.bincount(column, gpus * held_s, count)
        if now_s < open_from_s + BUCKET_S:
            break
        if open_gpu_s.any():
            closed.append((open_from_s, open_gpu_s))
        open_gpu_s, since_s = np.zeros(count), until_s
        open_from_s = until_s if len(column) else _bucket_start(now_s)
    history = usage.history
    if closed:
        starts = np.array([start for start, _ in closed])
        kept = history.to_s > now_s - KEPT_S
        history = UsageHistory(
            np.concatenate((history.from_s[kept], starts)),
            np.concatenate((history.to_s[kept], starts + BUCKET_S)),
            np.vstack((_widen(history.gpu_s, count)[kept], *(row for _, row in closed))),
        )
    return Usage(usage.accounts, history, open_from_s, open_gpu_s, now_s)


@lru_cache(maxsize=8)
def _decay_history(history: UsageHistory, half_life_s: float) -> Floats:
    """Return the decayed GPU-seconds of each account at the end of the last bucket."""
    age_s = history.to_s[-1] - (history.from_s + history.to_s) / 2
    return np.asarray(2.0 ** (-age_s / half_life_s) @ history.gpu_s)


@lru_cache(maxsize=8)
def _find_last_use(history: UsageHistory) -> Floats:
    """Return the end of the last bucket that each account has used."""
    used = history.gpu_s > 0
    last = len(used) - 1 - np.argmax(used[::-1], axis=0)
    return np.where(used.any(axis=0), history.to_s[last], -math.inf)


@lru_cache(maxsize=8)
def number_accounts(jobs: Jobs) -> tuple[Ints, tuple[Account, ...]]:
    """Return the number of each job's account, and the accounts by number."""
    users = max(len(jobs.user.names), 1)
    pairs, number = np.unique(jobs.team.codes * users + jobs.user.codes, return_inverse=True)
    names = tuple((jobs.team.names[p // users], jobs.user.names[p % users]) for p in pairs.tolist())
    return np.asarray(number.reshape(-1), dtype=np.int64), names


@lru_cache(maxsize=8)
def find_columns(names: tuple[Account, ...], accounts: tuple[Account, ...]) -> Ints:
    """Return the column of each name among *accounts*; -1: it has none."""
    column = {account: number for number, account in enumerate(accounts)}
    return np.array([column.get(name, -1) for name in names], dtype=np.int64)


def _bucket_start(at_s: float) -> float:
    return math.floor(at_s / BUCKET_S) * BUCKET_S


def _widen(gpu_s: Floats, accounts: int) -> Floats:
    """Return the buckets with columns of 0 for accounts that are newer than they."""
    if gpu_s.shape[1] == accounts:
        return gpu_s
    wide = np.zeros((len(gpu_s), accounts))
    wide[:, : gpu_s.shape[1]] = gpu_s
    return wide
