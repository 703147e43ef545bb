"""What all GPUs and each team have used, over restarts of the service; the host is not metered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

ALL = "*"
"""All of it; no team is called so."""


class Tally:
    """Joules of those who left, and what was used before we began."""

    def __init__(self) -> None:
        self._left_j: dict[str, float] = {}
        self._before_j: dict[str, float] = {}

    def add(self, team: str, energy_j: float) -> None:
        """A job of a team has used so much; less than nothing where that was counted before."""
        self._left_j[team] = self._left_j.get(team, 0.0) + energy_j

    def count_from(self, before_j: Mapping[str, float]) -> None:
        """What was used before we began, by team and in all."""
        self._before_j = dict(before_j)

    def read(self, all_j: float, running: Iterable[tuple[str, float]]) -> dict[str, float]:
        """By team and in all, with what those who are *running* have used."""
        used_j = dict(self._left_j)
        for team, energy_j in running:
            used_j[team] = used_j.get(team, 0.0) + energy_j
        used_j[ALL] = all_j
        names = {*used_j, *self._before_j}
        return {name: used_j.get(name, 0.0) + self._before_j.get(name, 0.0) for name in names}

    def zero(self, all_j: float, running: Iterable[tuple[str, float]]) -> None:
        """Count from now on."""
        self._before_j = {}
        self._before_j = {name: -energy_j for name, energy_j in self.read(all_j, running).items()}
