"""Energy of all GPUs and of each team, counted over restarts of the service. The host is not metered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

ALL = "*"
"""Key of the energy of all GPUs; no team may have this name."""


class EnergyLedger:
    """Joules of jobs that have ended, and those counted before this process started."""

    def __init__(self) -> None:
        self._ended_j: dict[str, float] = {}
        self._before_j: dict[str, float] = {}

    def add(self, team: str, energy_j: float) -> None:
        """Add the joules of a job that ended; negative: joules that were counted before."""
        self._ended_j[team] = self._ended_j.get(team, 0.0) + energy_j

    def restore(self, before_j: Mapping[str, float]) -> None:
        """Set the joules counted before this process started, by team and as `ALL`."""
        self._before_j = dict(before_j)

    def read(self, all_j: float, running: Iterable[tuple[str, float]]) -> dict[str, float]:
        """Return the totals by team and as `ALL`; *running* are pairs (team, joules) of running jobs."""
        used_j = dict(self._ended_j)
        for team, energy_j in running:
            used_j[team] = used_j.get(team, 0.0) + energy_j
        used_j[ALL] = all_j
        names = {*used_j, *self._before_j}
        return {name: used_j.get(name, 0.0) + self._before_j.get(name, 0.0) for name in names}

    def reset(self, all_j: float, running: Iterable[tuple[str, float]]) -> None:
        """Count from zero again."""
        self._before_j = {}
        self._before_j = {name: -energy_j for name, energy_j in self.read(all_j, running).items()}
