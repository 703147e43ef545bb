"""The bill of a month: joules, money and CO₂ of every job, by user and by team, and what was saved."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from wattline.core.protocols import Models
from wattline.energy.prices import Price
from wattline.errors import ConfigError
from wattline.service.billing.attempts import AttemptUse, build_attempts
from wattline.service.billing.sampled_share import crosses_edge, read_sampled_share
from wattline.service.billing.savings import (
    Saving,
    estimate_cap_savings,
    estimate_fusion_savings,
    estimate_tuning_savings,
)
from wattline.service.billing.settings import BillSettings
from wattline.service.storage.attempt_events import read_attempt_events_between
from wattline.service.storage.projection import JobRow
from wattline.service.storage.queries import StoreReader
from wattline.units import pluralize

_MONTH = re.compile(r"([0-9]{4})-([0-9]{2})")
_METHOD = (
    "counters of the GPUs at both ends of each attempt; joules are spread evenly over the part in the month; "
    "hosts are not metered"
)


class Month(NamedTuple):
    """A calendar month in UTC."""

    name: str  # 2026-11
    since_s: float
    until_s: float


@dataclass(frozen=True)
class BillLine:
    """Use of one job, one user or one team in the month. None: unknown, or no tariff is set."""

    energy_j: float | None  # of the attempts with known energy; None: of none it is known
    unknown_attempts: int  # attempts with energy that was not metered or could not be read
    gpu_hours: float
    money: float | None
    co2_kg: float | None
    methods: tuple[str, ...]
    jobs: int


@dataclass(frozen=True)
class JobLine:
    """A job of the bill."""

    job: str
    name: str
    user: str
    team: str
    state: str
    use: BillLine


@dataclass(frozen=True)
class TeamBill:
    """A bill. *team* None: of all teams."""

    team: str | None
    month: Month
    as_of_s: float  # the month is not over before *until_s*
    total: BillLine
    jobs: tuple[JobLine, ...]
    users: dict[str, BillLine]
    teams: dict[str, BillLine]
    savings: tuple[Saving, ...]
    notes: tuple[str, ...]
    method: str = _METHOD


def parse_month(text: str) -> Month:
    """Parse `2026-11`."""
    match = _MONTH.fullmatch(text)
    if match is None or not 1 <= int(match[2]) <= 12 or int(match[1]) < 1970:
        raise ConfigError(f"month is {text!r}, expected a month such as 2026-11")
    year, month = int(match[1]), int(match[2])
    if year == 9999:
        raise ConfigError(f"month is {text!r}, expected a year before 9999")
    start = datetime(year, month, 1, tzinfo=UTC)
    end = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    return Month(text, start.timestamp(), end.timestamp())


def build_bill(
    store: StoreReader,
    settings: BillSettings,
    month: Month,
    team: str | None,
    *,
    now_s: float,
    models: Models,
    read_live: Callable[[str], Mapping[str, Any]],
) -> TeamBill:
    """Return the bill of a team, or of all teams with None; *read_live* is the status of a running job."""
    events = read_attempt_events_between(store, month.since_s, month.until_s)
    if team is not None:
        events = [event for event in events if event.team == team]
    attempts, divided = _clip_attempts(store, build_attempts(events, read_live, now_s), month)
    rows = {row.id: row for row in store.jobs_with_ids(sorted({one.job for one in attempts}))}
    attempts = [one for one in attempts if one.job in rows]  # others were deleted meanwhile
    return TeamBill(
        team=team,
        month=month,
        as_of_s=now_s,
        total=_sum_use(attempts, settings),
        jobs=tuple(_list_jobs(attempts, rows, settings)),
        users=_sum_by(attempts, settings, lambda one: rows[one.job].user),
        teams=_sum_by(attempts, settings, lambda one: rows[one.job].team),
        savings=(
            estimate_cap_savings(attempts, rows, models),
            estimate_fusion_savings(attempts, rows, _read_alone_j(store, rows.values())),
            estimate_tuning_savings(attempts, rows, _read_runs_j(store, rows.values())),
        ),
        notes=(*_describe_division(divided), *_list_notes(store, settings, month, now_s)),
    )


def _clip_attempts(
    store: StoreReader, attempts: Sequence[AttemptUse], month: Month
) -> tuple[list[AttemptUse], Counter[str]]:
    """Return the parts of attempts in a month, and how many were divided at its edges, and how."""
    span, divided = (month.since_s, month.until_s), Counter[str]()
    clipped = []
    for attempt in attempts:
        share = None
        if crosses_edge(attempt, *span) and attempt.energy_j is not None:
            share = read_sampled_share(store, attempt, *span)
            divided["evenly" if share is None else "samples"] += 1
        clipped.append(attempt.clip(*span, share))
    return [attempt for attempt in clipped if attempt is not None], divided


def _describe_division(divided: Counter[str]) -> list[str]:
    hows = {"samples": "by power samples", "evenly": "evenly over time, as power samples are missing"}
    return [
        f"{pluralize(divided[how], 'attempt')} across the start or end of the month divided {text}"
        for how, text in hows.items()
        if divided[how]
    ]


def _sum_by(
    attempts: Sequence[AttemptUse], settings: BillSettings, key: Callable[[AttemptUse], str]
) -> dict[str, BillLine]:
    groups: dict[str, list[AttemptUse]] = defaultdict(list)
    for attempt in attempts:
        groups[key(attempt)].append(attempt)
    return {name: _sum_use(groups[name], settings) for name in sorted(groups)}


def _list_jobs(
    attempts: Sequence[AttemptUse], rows: Mapping[str, JobRow], settings: BillSettings
) -> list[JobLine]:
    uses = _sum_by(attempts, settings, lambda one: one.job)
    lines = (
        JobLine(job, rows[job].name, rows[job].user, rows[job].team, rows[job].state, use)
        for job, use in uses.items()
    )
    return sorted(lines, key=lambda line: int(line.job))


def _sum_use(attempts: Sequence[AttemptUse], settings: BillSettings) -> BillLine:
    known = [one for one in attempts if one.energy_j is not None]
    return BillLine(
        energy_j=math.fsum(one.energy_j or 0.0 for one in known) if known else None,
        unknown_attempts=len(attempts) - len(known),
        gpu_hours=math.fsum(one.gpu_s for one in attempts) / 3600.0,
        money=_sum_cost(known, settings.price),
        co2_kg=_sum_cost(known, settings.carbon, 1e-3),
        methods=tuple(dict.fromkeys(one.method for one in attempts)),
        jobs=len({one.job for one in attempts}),
    )


def _sum_cost(attempts: Iterable[AttemptUse], price: Price | None, scale: float = 1.0) -> float | None:
    """Return the cost of attempts at the price of their times; None: without a price, or without attempts."""
    costs = [] if price is None else [_cost(one, price) for one in attempts]
    return scale * math.fsum(costs) if costs else None


def _cost(attempt: AttemptUse, price: Price) -> float:
    energy_j = attempt.energy_j or 0.0
    if attempt.end_s <= attempt.start_s:
        return price.at(attempt.start_s)[0] * energy_j
    return price.cost(np.array((attempt.start_s, attempt.end_s)), np.array((0.0, energy_j)))


def _read_alone_j(store: StoreReader, rows: Iterable[JobRow]) -> dict[str, list[float]]:
    """Return the joules of the members of these rows' sweeps that succeeded without ever being fused."""
    sweeps = sorted({row.sweep for row in rows if row.sweep and row.fuse})
    found = store.read_rows(
        "SELECT sweep, energy_j FROM job WHERE state = 'SUCCEEDED' AND energy_j IS NOT NULL"
        " AND energy_method <> 'unmetered' AND sweep IN (SELECT value FROM json_each(?))"
        " AND NOT EXISTS (SELECT 1 FROM event WHERE event.job = job.id AND event.kind = 'started'"
        " AND json_array_length(event.data, '$.fused_with') > 0)",
        (json.dumps(sweeps),),
    )
    alone: dict[str, list[float]] = defaultdict(list)
    for sweep, energy_j in found:
        alone[sweep].append(energy_j)
    return alone


def _read_runs_j(store: StoreReader, rows: Iterable[JobRow]) -> dict[tuple[str, str, int], list[float]]:
    """Return the joules of the runs of these rows' groups that succeeded, by group, kind and batch size."""
    groups = sorted({str(row.submission["spec"].get("group") or "") for row in rows} - {""})
    found = store.read_rows(
        "SELECT submission->>'$.spec.group', allocation->>'$.kind',"
        " coalesce(results->>'$.batch', allocation->>'$.batch'), energy_j FROM job"
        " WHERE state = 'SUCCEEDED' AND energy_j IS NOT NULL AND energy_method <> 'unmetered'"
        " AND submission->>'$.spec.group' IN (SELECT value FROM json_each(?))",
        (json.dumps(groups),),
    )
    runs: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for group, kind, batch, energy_j in found:
        if batch:
            runs[group, kind or "", int(batch)].append(energy_j)
    return runs


def _list_notes(store: StoreReader, settings: BillSettings, month: Month, now_s: float) -> list[str]:
    """Return what the reader of the bill must know."""
    notes = []
    if month.since_s > now_s:
        notes.append("the month has not begun")
    elif month.until_s > now_s:
        notes.append("the month is not over: this is the bill so far")
    if settings.price is None:
        notes.append("no tariff is set: [bill] price in settings.toml of the service")
    else:
        unit = f" {settings.currency} per kWh" if settings.currency else " per kWh"
        notes.append(f"tariff: {str(settings.price).replace(' per kWh', unit, 1)}")
    if settings.carbon is None:
        notes.append("no CO₂ intensity is set: [bill] carbon in settings.toml of the service")
    else:
        notes.append(f"CO₂: {str(settings.carbon).replace(' per kWh', ' g per kWh', 1)}")
    deleted = _count_deleted(store, month)
    if deleted:
        notes.append(
            f"{deleted} jobs with lower numbers were deleted by the retention of the service; "
            "if they ran in this month, they are missing here"
        )
    return notes


def _count_deleted(store: StoreReader, month: Month) -> int:
    """Return how many jobs that may have run in the month are deleted: numbers without a job."""
    ((last, kept),) = store.read_rows(
        "SELECT coalesce(max(number), 0), count(*) FROM job WHERE submit_s < ?", (month.until_s,)
    )
    return int(last) - int(kept)
