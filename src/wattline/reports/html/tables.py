"""Contents of the tables and cards of a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from wattline.reports.compare import RATIOS, Comparison
from wattline.reports.figures.style import pick_colour
from wattline.reports.run_names import name_runs
from wattline.reports.seed_means import Estimate
from wattline.reports.summary import Report
from wattline.reports.text import (
    format_energy,
    format_money,
    format_number,
    format_percent,
    format_ratio,
    format_seconds,
    format_spread,
    list_energy_parts,
)

Rows = list[tuple[str, str]]  # name and value


class Card(NamedTuple):
    """A titled group of names and values."""

    title: str
    rows: Rows


class Cell(NamedTuple):
    """One value of a comparison; *ratio* is to the first run, *spread* half of an interval; "" = none."""

    text: str
    ratio: str
    is_best: bool
    value: float | None  # to sort by; None: unknown
    spread: str = ""


class ComparisonRow(NamedTuple):
    """One run of a comparison."""

    name: str
    colour: str
    on_front: bool
    cells: list[Cell]


class ComparisonTable(NamedTuple):
    """One row per run; *columns* are the titles after that of the run."""

    columns: list[str]
    rows: list[ComparisonRow]
    has_intervals: bool = False


class _Column(NamedTuple):
    title: str
    field: str  # of `Report`
    format_value: Callable[[float], str]
    best: Callable[[Sequence[float]], float] | None = min  # None = neither more nor less is better


def _format_count(value: float) -> str:
    return f"{value:,.10g}" if float(value).is_integer() else f"{value:,.1f}"


_COLUMNS = (
    _Column("finished", "finished", _format_count, None),
    _Column("mean JCT", "jct_mean_s", format_seconds),
    _Column("p50", "jct_p50_s", format_seconds),
    _Column("p99", "jct_p99_s", format_seconds),
    _Column("mean wait", "wait_mean_s", format_seconds),
    _Column("makespan", "makespan_s", format_seconds),
    _Column("energy", "energy_j", format_energy),
    _Column("cost", "cost", format_money),
    _Column("GPUs held", "gpu_utilisation", format_percent, None),
    _Column("stops", "preemptions", _format_count, None),
    _Column("late", "deadline_misses", _format_count),
    _Column("slowdown p99", "ftf_p99", format_number),
)


def build_comparison_table(comparison: Comparison) -> ComparisonTable:
    """Return one row per run, with the best value of each column marked and ratios to the first run."""
    reports, run_names = comparison.shown_reports, name_runs(comparison.reports)
    ratios = {name: comparison.estimate_ratios(name) for name in RATIOS}
    is_empty = {
        "deadline_misses": not any(r.deadline_jobs for r in reports),
        "cost": not any(math.isfinite(r.cost) for r in reports),
    }
    columns = [c for c in _COLUMNS if not is_empty.get(c.field)]
    best = {c.field: _find_best(c, [getattr(r, c.field) for r in reports]) for c in columns}
    estimates = {c.field: comparison.estimate(c.field) for c in columns}
    rows = []
    for i, r in enumerate(reports):
        cells = []
        for c in columns:
            value = getattr(r, c.field)
            ratio = ratios[c.field][i] if i and c.field in ratios else Estimate(math.nan)
            ratio_text = f"×{format_ratio(ratio)}" if math.isfinite(ratio.value) else ""
            known = float(value) if math.isfinite(value) else None
            spread = format_spread(estimates[c.field][i], c.format_value)
            cells.append(Cell(c.format_value(value), ratio_text, value == best[c.field], known, spread))
        rows.append(ComparisonRow(run_names[i], pick_colour(i), comparison.shown_front[i], cells))
    return ComparisonTable([c.title for c in columns], rows, comparison.seed_runs is not None)


def _format_gap(gap: float) -> str:
    if not math.isfinite(gap):
        return "-"
    return f"{100 * gap:,.0f} %" if gap >= 0.1 else f"{100 * gap:.2g} %"


def _find_best(column: _Column, values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    if column.best is None or len(set(known)) < 2:
        return math.nan
    return column.best(known)


def build_cards(r: Report) -> list[Card]:
    """Return all metrics of one run in groups."""
    return [
        Card("Jobs", _list_job_counts(r)),
        Card("JCT, submission to end", _list_completion_times(r)),
        Card("Waiting without GPUs", _list_waiting_times(r)),
        Card("Cluster", _list_cluster_metrics(r)),
        Card("Energy", _list_energy_metrics(r)),
    ]


def _list_job_counts(r: Report) -> Rows:
    late = f"{r.deadline_misses:,} of {r.deadline_jobs:,}" if r.deadline_jobs else "none set"
    return [
        ("arrived", _format_count(r.jobs)),
        ("finished", _format_count(r.finished)),
        ("failed", _format_count(r.failed)),
        ("unfinished", _format_count(r.unfinished)),
        ("deadlines missed", late),
        ("late by, on average", format_seconds(r.tardiness_mean_s)),
    ]


def _list_completion_times(r: Report) -> Rows:
    return [
        ("mean", format_seconds(r.jct_mean_s)),
        ("median", format_seconds(r.jct_p50_s)),
        ("p90", format_seconds(r.jct_p90_s)),
        ("p99", format_seconds(r.jct_p99_s)),
        ("longest", format_seconds(r.jct_max_s)),
        ("JCT / run time, p99", format_number(r.ftf_p99)),
    ]


def _list_waiting_times(r: Report) -> Rows:
    return [
        ("mean", format_seconds(r.wait_mean_s)),
        ("median", format_seconds(r.wait_p50_s)),
        ("p90", format_seconds(r.wait_p90_s)),
        ("p99", format_seconds(r.wait_p99_s)),
        ("to first start, mean", format_seconds(r.start_delay_mean_s)),
    ]


def _list_cluster_metrics(r: Report) -> Rows:
    return [
        ("makespan", format_seconds(r.makespan_s)),
        ("GPUs held", format_percent(r.gpu_utilisation)),
        ("offered load", format_percent(r.offered_load)),
        ("fragmented", format_percent(r.fragmentation)),
        ("preemptions", _format_count(r.preemptions)),
        ("restarts", _format_count(r.restarts)),
        ("losses", _format_count(r.losses)),
        *_list_switches(r),
    ]


def _list_energy_metrics(r: Report) -> Rows:
    has_both = r.gpu_hours > 0 and math.isfinite(r.energy_j)
    return [
        ("total", format_energy(r.energy_j)),
        *_list_energy_shares(r),
        ("per GPU-hour", format_energy(r.energy_j / r.gpu_hours) if has_both else "-"),
        *_list_costs(r),
    ]


def _list_energy_shares(r: Report) -> Rows:
    return [
        (name, f"{format_energy(value)}, {100 * value / r.energy_j:.0f} %")
        for name, value in list_energy_parts(r)
        if value >= 0 and r.energy_j > 0
    ]


def _list_costs(r: Report) -> Rows:
    """Return the costs and the optimality gap; empty for runs without a price."""
    rows = (
        ("cost of energy", format_money(r.energy_cost)),
        ("of being late", format_money(r.tardiness_cost) if math.isfinite(r.cost) else "-"),
        ("from the best decision, at most", _format_gap(r.gap_max)),
    )
    return [(name, value) for name, value in rows if value != "-"]


def _list_switches(r: Report) -> Rows:
    """Return the counts of cap changes, node switches and fused jobs that are above 0."""
    counts = (("caps changed", r.retunes), ("nodes switched on", r.boots), ("jobs fused", r.fused_jobs))
    return [(name, _format_count(count)) for name, count in counts if count]
