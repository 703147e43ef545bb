"""Lists of jobs: filters, order and counts in SQL, so that a page costs the same with 20,000 jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattline.service.storage.projection import COLUMNS, JobRow
from wattline.service.storage.queries import StoreReader

_LIKE_SIGNS, _ESCAPED = re.compile(r"([%_\\])"), r"\\\1"
_RAN = "(service_s + CASE WHEN state = 'RUNNING' THEN max(:now - coalesce(start_s, :now), 0) ELSE 0 END)"
SORTS = {
    "id": "number",
    "name": "name COLLATE NOCASE",
    "state": "state",
    "user": "user",
    "team": "team",
    "priority": "priority",
    "gpus": "json_extract(submission, '$.columns.gpus')",
    "submitted": "submit_s",
    "waited": f"(coalesce(end_s, :now) - submit_s - {_RAN})",
    "ran": _RAN,
    "progress": "completed_fraction",
    "energy": "energy_j",
}
"""Expressions by which a list can be sorted, by their names in requests."""
_MOST_OWNERS = 2000  # pairs of team and user


@dataclass(frozen=True)
class JobFilter:
    """Conditions that all have to hold; empty ones hold for every job."""

    states: tuple[str, ...] = ()
    team: str = ""
    user: str = ""
    sweep: str = ""
    text: str = ""  # in the name, the user or the team, in any case; or the id
    since_s: float | None = None  # it was submitted, ran or waited in this time
    until_s: float | None = None
    ids: tuple[str, ...] | None = None  # None: all
    condition: str = ""  # on columns of the table, of this program only
    after: int = 0  # only larger numbers
    before: int = 0  # only smaller numbers; 0: all

    def build_condition(self) -> tuple[str, dict[str, Any]]:
        """Return the condition of a WHERE clause, and its values by name."""
        where, values = ["1"], dict[str, Any]()
        if self.states:
            where.append("state IN (SELECT value FROM json_each(:states))")
            values["states"] = json.dumps(self.states)
        for name in ("team", "user", "sweep"):
            if getattr(self, name):
                where.append(f"{name} = :{name}")
                values[name] = getattr(self, name)
        if self.text:
            # LIKE folds the case without a copy of each value, and takes half the time of instr(lower()).
            fits = " OR ".join(f"{name} LIKE :pattern ESCAPE '\\'" for name in ("name", "user", "team"))
            where.append(f"({fits} OR id = :text)")
            values["text"], values["pattern"] = self.text, f"%{_LIKE_SIGNS.sub(_ESCAPED, self.text)}%"
        if self.since_s is not None:
            where.append("coalesce(end_s, 1e99) >= :since_s")
            values["since_s"] = self.since_s
        if self.until_s is not None:
            where.append("submit_s <= :until_s")
            values["until_s"] = self.until_s
        if self.ids is not None:
            where.append("number IN (SELECT value FROM json_each(:ids))")
            values["ids"] = json.dumps([int(id) for id in self.ids])
        if self.condition:
            where.append(f"({self.condition})")
        if self.after:
            where.append("number > :after")
            values["after"] = self.after
        if self.before:
            where.append("number < :before")
            values["before"] = self.before
        return " AND ".join(where), values


def read_job_list(
    store: StoreReader,
    filter: JobFilter,
    now_s: float,
    *,
    sort: str = "id",
    descending: bool = False,
    offset: int = 0,
    limit: int = 100,
) -> list[JobRow]:
    """Return a page of the jobs that match, in order of one of `SORTS`, then of their numbers."""
    where, values = filter.build_condition()
    direction = "DESC" if descending else "ASC"
    # With the plus no index gives the order: a text is searched in the index job_list, not in whole rows.
    column = f"+{SORTS[sort]}" if filter.text else SORTS[sort]
    order = f"{column} {direction}" + ("" if sort == "id" else f" NULLS LAST, number {direction}")
    found = store.read_rows(
        f"SELECT number FROM job WHERE {where} ORDER BY {order} LIMIT :limit OFFSET :offset",
        {**values, "now": now_s, "limit": limit, "offset": offset},
    )
    numbers = [number for (number,) in found]
    rows = {row.number: row for row in _read_numbers(store, numbers)}
    return [rows[number] for number in numbers if number in rows]  # one may be pruned meanwhile


def _read_numbers(store: StoreReader, numbers: Sequence[int]) -> list[JobRow]:
    found = store.read_rows(
        f"SELECT {', '.join(COLUMNS)} FROM job WHERE number IN (SELECT value FROM json_each(?))",
        (json.dumps(numbers),),
    )
    return [JobRow.from_columns(row) for row in found]


def count_jobs(store: StoreReader, filter: JobFilter) -> dict[str, int]:
    """Return the number of jobs that match, by state."""
    where, values = filter.build_condition()
    # With the plus no index on the state is used; the index job_list has all columns of filters.
    by = "state" if where == "1" else "+state"
    return dict(store.read_rows(f"SELECT state, count(*) FROM job WHERE {where} GROUP BY {by}", values))


def list_owners(store: StoreReader) -> tuple[list[str], list[str]]:
    """Return the teams and the users that have jobs, each sorted; of very many, only some."""
    # Each step searches the index job_list for the next pair: as many steps as pairs, not as jobs.
    pairs = store.read_rows(
        "WITH RECURSIVE owner (team, user) AS ("
        " SELECT * FROM (SELECT team, user FROM job ORDER BY team, user LIMIT 1)"
        " UNION ALL SELECT one.team, one.user FROM owner JOIN job AS one ON one.number = ("
        "  SELECT number FROM job WHERE (team, user) > (owner.team, owner.user) ORDER BY team, user LIMIT 1)"
        ") SELECT team, user FROM owner LIMIT ?",
        (_MOST_OWNERS,),
    )
    teams, users = {team for team, _ in pairs}, {user for _, user in pairs}
    return sorted(teams - {""}), sorted(users - {""})
