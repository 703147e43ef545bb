"""Which run is better, in what, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattline.errors import ConfigError
from wattline.grid import grid
from wattline.loop.runlog import Log
from wattline.reports.data.digest import Digest, digest
from wattline.reports.data.pareto_front import front
from wattline.reports.equal_energy import Equal, Swept, equal_text
from wattline.reports.run_names import names
from wattline.reports.summary import Report, finite
from wattline.reports.text import joules, money, percent, seconds

RATIOS = ("jct_mean_s", "jct_p99_s", "makespan_s", "energy_j", "cost")
"""Figures that are compared with the first run's; less is better in all of them."""

_SHOWN = {
    "jct_mean_s": ("mean JCT", seconds),
    "jct_p99_s": ("p99 JCT", seconds),
    "makespan_s": ("makespan", seconds),
    "energy_j": ("energy", joules),
    "cost": ("cost", money),
}

_SAME = ("trace", "jobs", "cluster")  # what runs must share for ratios to say something about policies


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several runs, the first of which the others are measured against."""

    reports: tuple[Report, ...]
    digests: tuple[Digest, ...] = ()  # for curves; none where a run was given as a mere report
    swept: Swept | None = None  # these three only where they were asked for
    equal_energy: tuple[Equal, ...] | None = None
    equal_jct: tuple[Equal, ...] | None = None

    def __post_init__(self) -> None:
        if not self.reports:
            raise ConfigError("nothing to compare: give at least one run")

    @property
    def ratios(self) -> dict[str, tuple[float, ...]]:
        """For each of `RATIOS`, every run's figure over the first one's; nan where there is none."""
        return {name: _ratios([getattr(r, name) for r in self.reports]) for name in RATIOS}

    @property
    def front(self) -> tuple[bool, ...]:
        """Which runs no other one beats in both energy and mean JCT."""
        return front(self.reports)

    @property
    def differs(self) -> tuple[str, ...]:
        """Of trace, jobs and cluster, those that are not the same for all runs."""
        return tuple(name for name in _SAME if len({getattr(r, name) for r in self.reports}) > 1)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the reports, and one ratio and one mark per report in the same order."""
        asked: dict[str, Any] = {} if self.swept is None else {"front": self.swept.as_rows()}
        for name, rows in (("equal_energy", self.equal_energy), ("equal_jct", self.equal_jct)):
            if rows is not None:
                asked[name] = [row.as_dict() for row in rows]
        return {
            "reports": [r.as_dict() for r in self.reports],
            "ratios": {name: [finite(v) for v in values] for name, values in self.ratios.items()},
            "pareto": list(self.front),
            "differs": list(self.differs),
            **asked,
        }

    def __str__(self) -> str:
        ratios, called = self.ratios, names(self.reports)
        priced = any(math.isfinite(r.cost) for r in self.reports)
        shown = {name: how for name, how in _SHOWN.items() if name != "cost" or priced}
        columns = (column for title, _ in shown.values() for column in (title, "x"))
        head = ("policy", *columns, "GPUs held", "stops", "")
        rows: list[Sequence[str]] = [head]
        for i, r in enumerate(self.reports):
            cells = [called[i]]
            for name, (_, show) in shown.items():
                cells += (show(getattr(r, name)), _times(ratios[name][i]))
            rows.append(
                (*cells, percent(r.gpu_utilisation), f"{r.preemptions:,}", "*" if self.front[i] else "")
            )
        lines = grid(rows, lambda column: "<" if column in (0, len(head) - 1) else ">")
        parts = ["\n".join((*lines, *self._notes(called)))]
        parts += [] if self.equal_energy is None else [equal_text(self.equal_energy, "energy_j")]
        parts += [] if self.equal_jct is None else [equal_text(self.equal_jct, "jct_mean_s")]
        parts += [] if self.swept is None else [str(self.swept)]
        return "\n\n".join(parts)

    def _notes(self, called: Sequence[str]) -> list[str]:
        notes = [f"x: compared with {called[0]}, less is better"]
        if any(self.front):
            notes.append("*: no other run is better in both energy and mean JCT")
        if not self.differs:
            first = self.reports[0]
            notes.append(f"{first.jobs:,} jobs, offered load {percent(first.offered_load)}")
        methods = sorted({r.energy_method for r in self.reports})
        notes.append(f"energy: {'; '.join(methods)}")
        if prices := sorted({r.price for r in self.reports if r.price}):
            notes.append(f"cost: energy at {'; '.join(prices)}, and what jobs pay for being late")
        if self.differs:
            notes.append(f"beware: these runs differ in {', '.join(self.differs)}")
        return notes


def compare(*runs: Log | Digest | Report) -> Comparison:
    """*runs* side by side; ratios are to the first."""
    seen = [digest(run) if isinstance(run, Log) else run for run in runs]
    digests = [run for run in seen if isinstance(run, Digest)]
    return Comparison(
        reports=tuple(run.report if isinstance(run, Digest) else run for run in seen),
        digests=tuple(digests) if len(digests) == len(seen) else (),
    )


def _ratios(values: Sequence[float]) -> tuple[float, ...]:
    base = values[0]
    return tuple(value / base if base > 0 else math.nan for value in values)


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if math.isfinite(ratio) else "-"
