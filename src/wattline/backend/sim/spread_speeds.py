"""Slowdown of simulated jobs that spread over racks and pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattline.backend.sim.true_speeds import Lease, TrueSpeeds
from wattline.core.table import Floats, Ints


@dataclass(frozen=True, eq=False)
class SpreadPenalty:
    """Rack and pod of each node, and the slowdowns of a job in one rack, in several, in several pods."""

    rack: Ints
    pod: Ints
    penalty: Floats

    def wrap(self, speeds: TrueSpeeds) -> SpreadSpeeds:
        """Return *speeds* with these slowdowns."""
        return SpreadSpeeds(speeds, self.rack.tolist(), self.pod.tolist(), self.penalty.tolist())

    def describe(self) -> dict[str, float]:
        """Return the slowdowns for the header of a log."""
        _, racks, pods = self.penalty.tolist()
        return {"several_racks": racks, "several_pods": pods}


@dataclass(frozen=True)
class SpreadSpeeds:
    """`TrueSpeeds` divided by the slowdown of the racks and pods that a job uses."""

    speeds: TrueSpeeds
    rack: list[int]
    pod: list[int]
    penalty: list[float]

    def look_up(self, jobs: list[int], leases: Sequence[Lease]) -> list[tuple[float, float]]:
        """Return (speed, watts per GPU) of each job under its lease."""
        found = self.speeds.look_up(jobs, leases)
        return [
            answer if len(lease.nodes) == 1 else (answer[0] / self._slowdown(lease.nodes), answer[1])
            for answer, lease in zip(found, leases, strict=True)
        ]

    def _slowdown(self, nodes: list[int]) -> float:
        if len({self.pod[node] for node in nodes}) > 1:
            return self.penalty[2]
        return self.penalty[1] if len({self.rack[node] for node in nodes}) > 1 else 1.0
