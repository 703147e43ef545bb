"""The answer of a what-if study, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from wattline.reports.assumptions import Assumption
from wattline.reports.data.pareto_front import mark_pareto_front
from wattline.whatif.bootstrap import Ratio
from wattline.whatif.metrics import ScheduleMetrics
from wattline.whatif.owners import OwnerChange
from wattline.whatif.recurrence import Potential
from wattline.whatif.reproduction import ReproductionError


@dataclass(frozen=True)
class Reproduction:
    """The scheduler that fits the first half of the records best, and its error in both halves."""

    scheduler: str
    candidates: tuple[tuple[str, float], ...]  # name and score on the first half; less is better
    start_delay_s: float  # that each start takes, measured in the first half
    metrics: ScheduleMetrics
    first: ReproductionError
    second: ReproductionError
    draws: tuple[float, ...] = ()  # mean wait of the second half, by draw of the fractions of a second

    def as_dict(self) -> dict[str, Any]:
        """Return the reproduction for JSON."""
        return {
            "scheduler": self.scheduler,
            "candidates": [{"scheduler": name, "score": score} for name, score in self.candidates],
            "start_delay_s": self.start_delay_s,
            "metrics": self.metrics.as_dict(),
            "first_half": self.first.as_dict(),
            "second_half": self.second.as_dict(),
            "draws_wait_s": list(self.draws),
        }


@dataclass(frozen=True)
class PolicyRow:
    """One policy in one world: figures (means over seeds), and ratios to the baseline."""

    policy: str
    metrics: ScheduleMetrics
    jct: Ratio
    energy: Ratio
    estimates: str = ""  # error of the durations that it was given; "": it was given the truth

    def as_dict(self, on_front: bool) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "policy": self.policy,
            **self.metrics.as_dict(),
            "jct_ratio": self.jct.as_dict(),
            "energy_ratio": self.energy.as_dict(),
            "pareto": on_front,
            "estimates": self.estimates,
        }


@dataclass(frozen=True)
class World:
    """One cluster at one load, with the policies that were simulated there; the first is the baseline."""

    cluster: str
    gpus: int
    load: float
    rows: tuple[PolicyRow, ...]

    @property
    def front(self) -> tuple[bool, ...]:
        """For each row, if no other is better in both energy and mean JCT."""
        return mark_pareto_front([row.metrics for row in self.rows])

    def as_dict(self) -> dict[str, Any]:
        """Return the world for JSON."""
        rows = [row.as_dict(front) for row, front in zip(self.rows, self.front, strict=True)]
        return {"cluster": self.cluster, "gpus": self.gpus, "load": self.load, "policies": rows}


@dataclass(frozen=True)
class WhatIf:
    """All parts of the answer; those that could not be computed are None, and *notes* say why."""

    trace: str
    jobs: int
    counted: int
    span_s: float
    seeds: int
    block: str  # of the bootstrap; "": none
    recorded: ScheduleMetrics | None
    reproduction: Reproduction | None
    worlds: tuple[World, ...]
    teams: tuple[OwnerChange, ...]
    user: OwnerChange | None
    potential: Potential
    assumptions: tuple[Assumption, ...]
    energy_methods: tuple[str, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the answer for JSON."""
        others = [row.policy for row in self.worlds[0].rows[1:]]
        return {
            "trace": self.trace,
            "jobs": self.jobs,
            "counted": self.counted,
            "span_s": self.span_s,
            "seeds": self.seeds,
            "block": self.block,
            "recorded": None if self.recorded is None else self.recorded.as_dict(),
            "reproduction": None if self.reproduction is None else self.reproduction.as_dict(),
            "worlds": [world.as_dict() for world in self.worlds],
            "teams": [change.as_dict(others) for change in self.teams],
            "user": None if self.user is None else self.user.as_dict(others),
            "potential": self.potential.as_dict(),
            "assumptions": [assumption.as_dict() for assumption in self.assumptions],
            "energy_methods": list(self.energy_methods),
            "notes": list(self.notes),
        }


def average_metrics(rows: Sequence[ScheduleMetrics]) -> ScheduleMetrics:
    """Return the mean of every figure over several seeds."""
    if len(rows) == 1:
        return rows[0]
    means = {f.name: sum(getattr(row, f.name) for row in rows) / len(rows) for f in fields(ScheduleMetrics)}
    counts = {
        name: round(means[name]) for name in ("jobs", "unfinished", "deadline_misses", "stops", "over_limit")
    }
    return replace(rows[0], **(means | counts))
