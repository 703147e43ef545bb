"""Runs that `benchmarks/market.py` compares: scenes, one simulation, and a match at equal energy."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

import wattline as wl
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cli.simulation.policy_argument import parse_policy_and_placer
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.core.table import Labels
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.durations.estimates import DurationEstimates
from wattline.models.durations.history import History
from wattline.models.library import library
from wattline.policy.knobs import find_energy_knob, has_knob, set_knob, turn_energy_knob
from wattline.reports import Report, report
from wattline.reports.knob_search import KnobMatch, find_knob_value, search_log_scale

DATA = Path(os.environ.get("WATTLINE_DATA", "../shared/data"))


@dataclass(frozen=True, eq=False)
class Scene:
    """Jobs on a cluster, and what a run of them costs."""

    name: str
    jobs: Jobs
    nodes: Nodes
    models: Models = field(default_factory=library)
    durations: str = "clairvoyant"
    overheads: Overheads = field(default_factory=lambda: Overheads(restart_s=30.0))
    quantum_s: float | None = None
    price: wl.Price | None = None
    believed: Models | None = None  # models of the policy; None: the true ones
    budgets: tuple[object, ...] = ()
    _known: dict[tuple[str, float | None], Report] = field(default_factory=dict)

    def run_log(self, text: str, knob: float | None = None) -> Log:
        """Simulate the policy *text*, as in `afs@buddy+power`, with its energy knob at *knob*."""
        policy, place = parse_policy_and_placer(text, "buddy+power", "easy")
        if knob is not None:
            policy = turn_energy_knob(policy, knob)
        if self.price is not None and has_knob(policy, "price"):
            policy = set_knob(policy, "price", self.price)
        if self.budgets and has_knob(policy, "budgets"):
            policy = set_knob(policy, "budgets", self.budgets)
        sim = Sim(
            self.jobs,
            self.nodes,
            truth=self.models,
            overheads=self.overheads,
            quantum_s=self.quantum_s,
        )
        estimates = None if self.durations == "clairvoyant" else estimate_by_history
        believed = self.models if self.believed is None else self.believed
        return run(sim, policy, believed, place=place, price=self.price, durations=estimates)

    def simulate(self, text: str, knob: float | None = None) -> Report:
        """Return the report of such a run; each is run once."""
        if (text, knob) not in self._known:
            found = report(self.run_log(text, knob))
            if found.unfinished:
                raise SystemExit(f"{self.name}: {text} left {found.unfinished} jobs unfinished")
            self._known[text, knob] = found
        return self._known[text, knob]

    def match_energy(self, text: str, target_j: float) -> KnobMatch:
        """Return the run of *text* that uses *target_j*, or the best that uses less."""
        knob = find_energy_knob(parse_policy_and_placer(text, "buddy+power", "easy")[0])
        if knob is None:
            found = self.simulate(text)
            return KnobMatch(math.nan, found, False, "above" if found.energy_j < target_j else "below")

        def run_at(value: float) -> Report:
            return self.simulate(text, value)

        if knob.scale == "log":
            return search_log_scale(run_at, target_j, "energy_j", knob)
        return find_knob_value(run_at, target_j, "energy_j", grid=knob.grid[::2])

    def simulate_fastest(self, text: str) -> Report:
        """Return the run of *text* in which energy does not count."""
        knob = find_energy_knob(parse_policy_and_placer(text, "buddy+power", "easy")[0])
        return self.simulate(text, None if knob is None else knob.fastest)


def estimate_by_history(jobs: Jobs) -> DurationEstimates:
    """Return estimates from the jobs that have ended."""
    return DurationEstimates(jobs, History(jobs))


@dataclass
class Ratios:
    """Ratios of baselines to ours, above 1 where ours is better, and the bar of their mean."""

    name: str
    bar: float
    values: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Mean of the values; nan without any."""
        return float(np.mean(self.values)) if self.values else math.nan

    @property
    def met(self) -> bool:
        """True if the mean reaches the bar."""
        return self.mean >= self.bar

    def __str__(self) -> str:
        spread = float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0
        losses = sum(value < 1 for value in self.values)
        text = (
            f"{self.name:38} {self.mean:6.3f} ± {spread:.3f} ({min(self.values):.3f}-{max(self.values):.3f})"
        )
        text += f"  n={len(self.values)}, below 1: {losses}"
        verdict = "" if math.isinf(self.bar) else f"  bar {self.bar:g}: {'met' if self.met else 'MISSED'}"
        return text + verdict + "".join(f"\n{'':36}{note}" for note in self.notes)


def print_ratios(rows: Sequence[Ratios]) -> bool:
    """Print *rows*; return whether all bars are met."""
    for row in rows:
        if row.values:
            print(row, flush=True)
    return all(row.met or math.isinf(row.bar) for row in rows if row.values)


def take_lever(jobs: Jobs, lever: str) -> Jobs:
    """Return *jobs* without one lever: `gpus`, `batch`, `fuse` or `deadlines`."""
    none = np.zeros(len(jobs), dtype=np.int64)
    changes: dict[str, Callable[[], Jobs]] = {
        "gpus": lambda: replace(jobs, min_gpus=jobs.gpus.copy(), max_gpus=jobs.gpus.copy()),
        "batch": lambda: replace(jobs, max_batch=none),
        "fuse": lambda: replace(jobs, fuse=Labels.repeat("", len(jobs))),
        "deadlines": lambda: replace(jobs, deadline_s=np.full(len(jobs), np.inf)),
    }
    return changes[lever]()
