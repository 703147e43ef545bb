"""Teams: their jobs, and the energy that ended attempts used in a month, from the events."""

from __future__ import annotations

from dataclasses import dataclass

from wattline.service.storage.queries import StoreReader
from wattline.service.storage.team_energy import TeamEnergy


@dataclass(frozen=True)
class TeamUsage:
    """One team; *team* empty: jobs without one."""

    team: str
    counts: dict[str, int]  # jobs by state
    energy_j: float  # of attempts that ended since a time, as far as it is known
    unknown: int  # attempts with unknown energy
    methods: tuple[str, ...]


def read_team_usage(store: StoreReader, since_s: float) -> list[TeamUsage]:
    """Return all teams by name, with the energy of attempts that ended from *since_s* on."""
    counts: dict[str, dict[str, int]] = {}
    for team, state, count in store.read_rows("SELECT team, state, count(*) FROM job GROUP BY team, state"):
        counts.setdefault(team, {})[state] = count
    energies = store.team_energy.read(since_s)
    teams = []
    for team in sorted(counts):
        one = energies.get(team, TeamEnergy())
        teams.append(TeamUsage(team, counts[team], one.energy_j, one.unknown, tuple(one.methods)))
    return teams
