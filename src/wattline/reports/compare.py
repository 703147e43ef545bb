"""Comparison of several runs."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattline.errors import ConfigError
from wattline.loop.runlog import Log
from wattline.reports.assumptions import format_assumptions
from wattline.reports.data.pareto_front import mark_pareto_front
from wattline.reports.data.plot_data import PlotData, build_plot_data
from wattline.reports.equal_energy import KnobSweep, MatchedComparison, format_matches
from wattline.reports.run_names import name_runs
from wattline.reports.seed_means import INTERVAL, Estimate, SeedRuns
from wattline.reports.summary import Report, finite_or_none
from wattline.reports.text import (
    format_energy,
    format_money,
    format_percent,
    format_ratio,
    format_seconds,
    format_spread,
)
from wattline.text_table import format_narrow_table

RATIOS = ("jct_mean_s", "jct_p99_s", "makespan_s", "energy_j", "cost")
"""Metrics reported as ratios to the first run; less is better in all of them."""

SEED_FIGURES = (
    *RATIOS,
    "jct_p50_s",
    "wait_mean_s",
    "wait_p99_s",
    "gpu_utilisation",
    "finished",
    "preemptions",
)
"""Metrics of which the means over several seeds are in the JSON."""

_COLUMNS = {
    "jct_mean_s": ("mean JCT", format_seconds),
    "jct_p99_s": ("p99 JCT", format_seconds),
    "makespan_s": ("makespan", format_seconds),
    "energy_j": ("energy", format_energy),
    "cost": ("cost", format_money),
}

_INPUTS = ("trace", "team", "jobs", "cluster")  # ratios compare policies only where these are equal


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several runs; the first is the base of all ratios."""

    reports: tuple[Report, ...]
    plot_data: tuple[PlotData, ...] = ()  # curves of all runs; empty if any run was passed as a `Report`
    sweep: KnobSweep | None = None  # this and the next two: None = not requested
    equal_energy: tuple[MatchedComparison, ...] | None = None
    equal_jct: tuple[MatchedComparison, ...] | None = None
    seed_runs: SeedRuns | None = None  # of all seeds; None = *reports* are all there is

    def __post_init__(self) -> None:
        if not self.reports:
            raise ConfigError("no run to compare, expected at least one run log or report")

    @property
    def ratios(self) -> dict[str, tuple[float, ...]]:
        """For each of `RATIOS`, the metric of every run over that of the first; nan = undefined."""
        return {name: _divide_by_first([getattr(r, name) for r in self.reports]) for name in RATIOS}

    @property
    def pareto_front(self) -> tuple[bool, ...]:
        """For each run, if no other run beats it in both energy and mean JCT."""
        return mark_pareto_front(self.reports)

    @property
    def shown_reports(self) -> tuple[Report, ...]:
        """The reports of tables and figures: means over the seeds where there are several."""
        return self.reports if self.seed_runs is None else self.seed_runs.mean_reports

    @property
    def shown_front(self) -> tuple[bool, ...]:
        """The Pareto front of `shown_reports`."""
        return self.pareto_front if self.seed_runs is None else self.seed_runs.pareto_front

    def estimate(self, name: str) -> tuple[Estimate, ...]:
        """Return a figure of every run, with an interval where there are several seeds."""
        if self.seed_runs is not None:
            return self.seed_runs.estimate(name)
        return tuple(Estimate(getattr(r, name)) for r in self.reports)

    def estimate_ratios(self, name: str) -> tuple[Estimate, ...]:
        """Return one of `RATIOS` of every run, with an interval where there are several seeds."""
        if self.seed_runs is not None:
            return self.seed_runs.estimate_ratios(name)
        return tuple(map(Estimate, self.ratios[name]))

    @property
    def differing_inputs(self) -> tuple[str, ...]:
        """Those of trace, jobs and cluster that differ between runs."""
        return tuple(name for name in _INPUTS if len({getattr(r, name) for r in self.reports}) > 1)

    @property
    def assumptions(self) -> tuple[Mapping[str, Any], ...]:
        """The assumptions of all runs, each once."""
        found = {(a["name"], a["value"]): a for r in self.reports for a in r.assumptions}
        return tuple(found.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON: reports, and in the same order their ratios and Pareto marks.

        With several seeds these are of the first, and `seeds` has the means.
        """
        requested: dict[str, Any] = {} if self.sweep is None else {"front": self.sweep.as_rows()}
        for name, rows in (("equal_energy", self.equal_energy), ("equal_jct", self.equal_jct)):
            if rows is not None:
                requested[name] = [row.as_dict() for row in rows]
        if self.seed_runs is not None:
            requested["seeds"] = self.seed_runs.as_dict(SEED_FIGURES, RATIOS)
        return {
            "reports": [r.as_dict() for r in self.reports],
            "ratios": {name: [finite_or_none(v) for v in values] for name, values in self.ratios.items()},
            "pareto": list(self.pareto_front),
            "differs": list(self.differing_inputs),
            "assumptions": [dict(assumption) for assumption in self.assumptions],
            **requested,
        }

    def __str__(self) -> str:
        run_names = name_runs(self.reports)
        has_price = any(math.isfinite(r.cost) for r in self.shown_reports)
        columns = {name: column for name, column in _COLUMNS.items() if name != "cost" or has_price}
        titles = (title for name, _ in columns.values() for title in (name, "x"))
        due = any(r.deadline_jobs for r in self.reports)
        bounded = any(math.isfinite(r.gap_to_bound) for r in self.reports)
        header = (
            "policy",
            *titles,
            "",
            "mean wait",
            "p99 wait",
            *(("late",) if due else ()),
            *(("gap",) if bounded else ()),
            "held",
            "stops",
        )
        rows = []
        figures = {name: (self.estimate(name), self.estimate_ratios(name)) for name in columns}
        waits = self.estimate("wait_mean_s"), self.estimate("wait_p99_s")
        for i, r in enumerate(self.shown_reports):
            cells = [run_names[i]]
            for name, (_, format_value) in columns.items():
                values, ratios = figures[name]
                ratio = ratios[i] if i else Estimate(ratios[i].value)  # the first is exactly as itself
                cells += (_format_value(values[i], format_value), format_ratio(ratio))
            cells += ("*" if self.shown_front[i] else "",)
            cells += (_format_value(wait[i], format_seconds) for wait in waits)
            cells += (f"{round(r.deadline_misses):,}",) if due else ()
            cells += (format_percent(r.gap_to_bound),) if bounded else ()
            rows.append((*cells, format_percent(r.gpu_utilisation), f"{round(r.preemptions):,}"))
        lines = format_narrow_table(header, rows, right=range(1, len(header)))
        parts = ["\n".join((*lines, *self._list_notes(run_names)))]
        parts += [] if self.equal_energy is None else [format_matches(self.equal_energy, "energy_j")]
        parts += [] if self.equal_jct is None else [format_matches(self.equal_jct, "jct_mean_s")]
        parts += [] if self.sweep is None else [str(self.sweep)]
        return "\n\n".join(parts)

    def describe_seeds(self) -> str:
        """Return how many seeds there are and what their intervals mean; "" with one."""
        if self.seed_runs is None:
            return ""
        seeds = self.seed_runs.seeds
        return f"means over {len(seeds)} seeds ({seeds[0]} to {seeds[-1]}); ± and brackets: {INTERVAL}"

    def _list_bound_notes(self) -> list[str]:
        """Return what `gap` means, or why there is no bound; nothing if the runs differ in their inputs."""
        if self.seed_runs is not None:
            known = any(math.isfinite(r.gap_to_bound) for r in self.shown_reports)
            return (
                ["gap: mean JCT above that below which no policy can be on the same trace"] if known else []
            )
        bounds = {(r.bound_jct_mean_s, r.bound_none) for r in self.reports if r.bound_jct_mean_s > 0}
        if len(bounds) == 1 and not self.differing_inputs:
            bound = format_seconds(next(iter(bounds))[0])
            return [f"gap: mean JCT above {bound}, below which no policy can be on this trace"]
        return [f"bound: {text}" for text in dict.fromkeys(r.bound_none for r in self.reports) if text]

    def _list_notes(self, run_names: Sequence[str]) -> list[str]:
        notes = [f"x: compared with {run_names[0]}, less is better"]
        if self.seed_runs is not None:
            notes = [f"{notes[0]}; the mean of the ratios of each seed", self.describe_seeds()]
        if any(self.shown_front):
            notes.append("*: no other run is better in both energy and mean JCT")
        if not self.differing_inputs:
            first = self.shown_reports[0]
            of = f" of team {first.team}" if first.team else ""
            notes.append(f"{round(first.jobs):,} jobs{of}, offered load {format_percent(first.offered_load)}")
        methods = sorted({r.energy_method for r in self.reports})
        notes.append(f"energy: {'; '.join(methods)}")
        if prices := sorted({r.price for r in self.reports if r.price}):
            notes.append(f"cost: energy at {'; '.join(prices)}, and what jobs pay for being late")
        if any(r.deadline_jobs for r in self.reports):
            notes.append("late: jobs that missed their deadline")
        notes += self._list_bound_notes()
        notes += [
            f"{name}: durations by {r.estimate_error}"
            for name, r in zip(run_names, self.reports, strict=True)
            if r.estimate_error
        ]
        if self.assumptions:
            notes.append(f"assumed: {format_assumptions(self.assumptions)}")
        if self.differing_inputs:
            notes.append(f"beware: these runs differ in {', '.join(self.differing_inputs)}")
        return [line for note in notes for line in textwrap.wrap(note, 80, subsequent_indent="  ")]


def compare(*runs: Log | PlotData | Report) -> Comparison:
    """Return *runs* side by side; ratios are to the first."""
    reduced = [build_plot_data(run) if isinstance(run, Log) else run for run in runs]
    plot_data = [run for run in reduced if isinstance(run, PlotData)]
    return Comparison(
        reports=tuple(run.report if isinstance(run, PlotData) else run for run in reduced),
        plot_data=tuple(plot_data) if len(plot_data) == len(reduced) else (),
    )


def _divide_by_first(values: Sequence[float]) -> tuple[float, ...]:
    base = values[0]
    return tuple(value / base if base > 0 else math.nan for value in values)


def _format_value(estimate: Estimate, format_value: Callable[[float], str]) -> str:
    """Return a figure as `3.1 h`, or `3.1 h ± 12 min` with an interval."""
    return f"{format_value(estimate.value)} {format_spread(estimate, format_value)}".rstrip()
