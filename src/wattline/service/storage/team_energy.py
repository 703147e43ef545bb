"""Energy of ended attempts by team since a time, kept between reads: a read adds only the events after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wattline.service.storage.usage_table import ENDS

ReadRows = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]

_KINDS = ", ".join(f"'{kind}'" for kind in ENDS)
# An event carries the energy of all attempts so far, so that of an attempt is the difference to the one
# before; no row: there was none before.
_NEW_ENDS = f"""
SELECT event.seq, job.team, event.data->>'$.energy_method', event.data->>'$.energy_j',
  (SELECT ifnull(before.data->>'$.energy_j', 'unknown') FROM event AS before
   WHERE before.job = event.job AND before.seq < event.seq AND before.kind IN ({_KINDS})
   ORDER BY before.seq DESC LIMIT 1)
FROM event CROSS JOIN job ON job.id = event.job
WHERE event.seq > ? AND event.kind IN ({_KINDS}) AND event.at_s >= ? ORDER BY event.seq
"""
_KEPT = 4  # times since which sums are kept


@dataclass
class TeamEnergy:
    """Energy of one team's attempts."""

    energy_j: float = 0.0  # as far as it is known
    unknown: int = 0  # attempts with unknown energy
    methods: dict[str, None] = field(default_factory=dict)  # in order of their first use


@dataclass
class _Sums:
    last_seq: int = 0
    teams: dict[str, TeamEnergy] = field(default_factory=dict)


class TeamEnergySums:
    """Sums of the energy of teams. They begin anew when jobs were deleted."""

    def __init__(self, read_rows: ReadRows) -> None:
        self._read_rows, self._lock = read_rows, threading.Lock()
        self._missing = -1  # job numbers without a job
        self._since: dict[float, _Sums] = {}

    def read(self, since_s: float) -> dict[str, TeamEnergy]:
        """Return the energy of attempts that ended from *since_s* on, by team."""
        with self._lock:
            ((missing,),) = self._read_rows("SELECT coalesce(max(number), 0) - count(*) FROM job", ())
            if missing != self._missing:
                self._missing = missing
                self._since.clear()
            sums = self._since.pop(since_s, None) or _Sums()
            for seq, team, method, after_j, before_j in self._read_rows(_NEW_ENDS, (sums.last_seq, since_s)):
                sums.last_seq = seq
                if method:
                    _add(sums.teams.setdefault(team, TeamEnergy()), method, after_j, before_j)
            self._since[since_s] = sums  # the newest is last
            while len(self._since) > _KEPT:
                del self._since[next(iter(self._since))]
            return {
                team: TeamEnergy(one.energy_j, one.unknown, dict(one.methods))
                for team, one in sums.teams.items()
            }


def _add(team: TeamEnergy, method: str, after_j: float | None, before_j: float | str | None) -> None:
    team.methods[method] = None
    if after_j is None or isinstance(before_j, str) or method == "unmetered":
        team.unknown += 1
    else:
        team.energy_j += after_j - (before_j or 0.0)
