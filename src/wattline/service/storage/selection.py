"""Selections of jobs: by ids and ranges, sweep, name, user, team and state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

_LAST_NUMBER = 2**62


class SelectedJob(NamedTuple):
    """The columns of a job that decide on a change of it."""

    id: str
    state: str
    held: bool
    cancelled: bool
    priority: float
    user: str
    gated: bool  # it has dependencies, or its sweep a limit


SELECTED_COLUMNS = "id, state, held, cancelled, priority, user, max_parallel > 0 OR depends_on <> '[]'"


class WithheldJob(NamedTuple):
    """A job that waits for its dependencies, or for a place in its sweep."""

    id: str
    sweep: str
    max_parallel: int
    depends_on: list[dict[str, str]]


@dataclass(frozen=True)
class JobSelection:
    """Jobs with one of the ids or in one of the ranges, that also match every filter that is set."""

    jobs: tuple[str, ...] = ()  # ids and ranges: 12, 1..500, 8..
    sweep: str = ""
    name: str = ""  # with *, ? and [a-c] as in file names
    user: str | None = None
    team: str = ""
    states: tuple[str, ...] = ()
    all: bool = False

    @property
    def is_empty(self) -> bool:
        """True if nothing limits the selection, and all jobs were not asked for."""
        filters = (self.jobs, self.sweep, self.name, self.user, self.team, self.states)
        return not self.all and not any(filters)

    @property
    def names_jobs(self) -> bool:
        """True if the selection is a list of ids, without ranges and filters."""
        filters = (self.sweep, self.name, self.user, self.team, self.states, self.all)
        return bool(self.jobs) and not any(filters) and len(self.ids) == len(self.jobs)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids among *jobs*, without ranges."""
        return tuple(dict.fromkeys(word for word in self.jobs if ".." not in word))

    def with_defaults(self, user: str | None, states: Sequence[str]) -> JobSelection:
        """Return the selection with this user and these states where it has none."""
        return replace(
            self, user=self.user if self.user is not None else user, states=self.states or tuple(states)
        )

    def build_condition(self) -> tuple[str, list[Any]]:
        """Return the condition of a WHERE clause, and its values."""
        where, values = ["1"], list[Any]()
        if self.jobs:
            # A join, since SQLite limits the terms of a condition.
            where.append(
                "number IN (SELECT one.number FROM json_each(?) AS span JOIN job AS one"
                " ON one.number BETWEEN span.value->>0 AND span.value->>1)"
            )
            values.append(json.dumps([_parse_span(word) for word in self.jobs]))
        if self.states:
            where.append(f"state IN ({', '.join('?' * len(self.states))})")
            values += self.states
        for column, value in (("sweep", self.sweep), ("team", self.team)):
            if value:
                where.append(f"{column} = ?")
                values.append(value)
        if self.user is not None:
            where.append("user = ?")
            values.append(self.user)
        if self.name:
            where.append("name GLOB ?")
            values.append(self.name)
        return " AND ".join(where), values


def _parse_span(text: str) -> tuple[int, int]:
    first, dots, last = text.partition("..")
    return int(first), int(last or _LAST_NUMBER) if dots else int(first)
