"""Page about one run, or about several side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wattline.loop.runlog import Log
from wattline.reports.compare import Comparison, compare
from wattline.reports.data.plot_data import PlotData
from wattline.reports.equal_energy import (
    MatchedComparison,
    format_match_title,
    list_match_columns,
    list_match_notes,
)
from wattline.reports.figures.curves import build_jct_figure, build_time_figure
from wattline.reports.figures.nodes import build_node_figures
from wattline.reports.figures.prices import build_price_figure
from wattline.reports.figures.tradeoff import build_tradeoff_figure
from wattline.reports.html.document import render_document, write_page
from wattline.reports.html.plain_summary import summarize
from wattline.reports.html.tables import build_cards, build_comparison_table
from wattline.reports.knob_search import Metric
from wattline.reports.run_names import name_runs
from wattline.reports.seed_means import SeedRuns
from wattline.reports.summary import Report
from wattline.reports.text import format_percent

Run = Log | PlotData | Report

_PLOTS = (
    (
        "tradeoff",
        "Energy and mean JCT",
        "None beats the runs on the dotted line in both. Lower left is better.",
    ),
    ("jct", "How long jobs took", "Share of the finished jobs that were done within a time."),
    ("time", "Over time", "Queue, GPUs held and power, on one time axis."),
    (
        "prices",
        "Prices",
        "Price of a GPU-hour by kind, and what budgets add to it at full power: the highest is the "
        "bottleneck. Below, the price of a joule. Seconds of completion time, or money with aim=cost.",
    ),
    (
        "nodes-0",
        "Nodes",
        "GPUs held on each node: a colour for each job, or from dark (none) to yellow (all) where there are "
        "many; grey or pale where a node is off, booting or down.",
    ),
)


class _PlotSection(NamedTuple):
    figure: str
    title: str
    note: str
    run_names: tuple[str, ...]  # to choose from; empty = no choice


class _MatchSection(NamedTuple):
    title: str
    note: str
    rows: list[tuple[str, ...]]


def write_html(path: str | Path, runs: Run | Comparison | Iterable[Run]) -> None:
    """Write a page about *runs* that works offline; needs the extra `report`.

    A run passed as a `Report` has no curves, and then the page has none of any run.
    """
    if isinstance(runs, Log | PlotData | Report):
        runs = (runs,)
    comparison = runs if isinstance(runs, Comparison) else compare(*runs)
    write_page(path, render_page(comparison))


def render_page(comparison: Comparison) -> str:
    """Return the page about the runs of *comparison* as HTML."""
    figures = build_figures(comparison)
    single = len(comparison.reports) == 1 and comparison.seed_runs is None
    return render_document(
        "page.html",
        _format_title(comparison),
        _list_facts(comparison),
        figures,
        made_from="the run log",
        summary=summarize(comparison),
        cards=build_cards(comparison.reports[0]) if single else [],
        comparison=None if single else build_comparison_table(comparison),
        summary_note="" if single else _format_summary_note(comparison),
        match_columns=list_match_columns(comparison.equal_energy or comparison.equal_jct or ()),
        matches=[
            _describe_matches(rows, metric) for rows, metric in _list_matches(comparison) if rows is not None
        ],
        plots=_list_plots(comparison, figures),
        assumptions=[(a["name"], a["value"], a["says"]) for a in comparison.assumptions],
    )


def build_figures(comparison: Comparison) -> dict[str, Any]:
    """Return the figures of a page by name: `tradeoff`, `jct`, `time`, `prices`, `nodes-0`, `nodes-1`, …"""
    figures: dict[str, Any] = {}
    several = len(comparison.reports) > 1 or comparison.sweep or comparison.seed_runs
    if several and any(comparison.shown_front):
        figures["tradeoff"] = build_tradeoff_figure(
            comparison.shown_reports, comparison.sweep, comparison.seed_runs
        )
    if comparison.plot_data:
        run_names = name_runs(comparison.reports)
        figures["jct"] = build_jct_figure(comparison.plot_data, run_names)
        figures["time"] = build_time_figure(comparison.plot_data, run_names)
        if any(run.prices for run in comparison.plot_data):
            figures["prices"] = build_price_figure(comparison.plot_data, run_names)
        for i, figure in enumerate(build_node_figures([run.gantt for run in comparison.plot_data])):
            figures[f"nodes-{i}"] = figure
    return figures


def _list_plots(comparison: Comparison, figures: Mapping[str, Any]) -> list[_PlotSection]:
    sections = []
    for figure, title, note in _PLOTS:
        if figure not in figures:
            continue
        if comparison.seed_runs is not None:
            note += _describe_seed_marks(figure, comparison.seed_runs)
        if figure == "tradeoff" and comparison.sweep:
            policy, knob = comparison.sweep.policy, comparison.sweep.knob
            note += f" The solid line is what {policy} does with other values of {knob}: it may beat them."
        can_choose = figure == "nodes-0" and len(comparison.plot_data) > 1
        run_names = name_runs([run.report for run in comparison.plot_data]) if can_choose else ()
        sections.append(_PlotSection(figure, title, note, run_names))
    return sections


def _describe_seed_marks(figure: str, seed_runs: SeedRuns) -> str:
    """Return what a figure shows of several seeds."""
    if figure != "tradeoff":
        return f" Only the seed {seed_runs.seeds[0]} is shown, the first of {len(seed_runs.seeds)}."
    return (
        f" Points are means over {len(seed_runs.seeds)} seeds, bars their 95 % intervals. Runs share their"
        " seeds, so two policies may differ surely though their bars overlap: the ratios of the table tell."
    )


def _list_matches(comparison: Comparison) -> list[tuple[Sequence[MatchedComparison] | None, Metric]]:
    return [(comparison.equal_energy, "energy_j"), (comparison.equal_jct, "jct_mean_s")]


def _describe_matches(rows: Sequence[MatchedComparison], metric: Metric) -> _MatchSection:
    note = "; ".join(list_match_notes(rows, metric))
    return _MatchSection(format_match_title(rows, metric), note, [row.cells for row in rows])


def _format_summary_note(comparison: Comparison) -> str:
    note = f"Ratios are to {name_runs(comparison.reports)[0]}; the best of each column is blue; "
    note += "◆ marks the Pareto front of energy and mean JCT."
    if seeds := comparison.describe_seeds():
        note += f" {seeds[0].upper()}{seeds[1:]}. Ratios are of runs with the same seed."
    if comparison.differing_inputs:
        note += f" Beware: these runs differ in {', '.join(comparison.differing_inputs)}."
    return note


def _format_title(comparison: Comparison) -> str:
    reports = comparison.reports
    traces = {r.trace for r in reports}
    trace = f" on {Path(traces.pop()).name}" if len(traces) == 1 and all(traces) else ""
    if len(reports) == 1:
        seeds = f", {len(comparison.seed_runs.seeds)} seeds" if comparison.seed_runs else ""
        return f"{name_runs(reports)[0]}{trace}{seeds}"
    if comparison.seed_runs is not None:
        return f"{len(reports)} policies compared{trace}, {len(comparison.seed_runs.seeds)} seeds"
    return f"{len(reports)} runs compared{trace}"


def _list_facts(comparison: Comparison) -> list[tuple[str, str]]:
    """Return names and values; a value that several runs share stands once."""
    reports, seeds = comparison.reports, comparison.seed_runs
    rows = [
        ("policy" if len(reports) == 1 else "policies", [r.policy for r in reports]),
        ("trace", [r.trace or "not named" for r in reports]),
        ("team", [f"only the jobs of {r.team}" if r.team else "" for r in reports]),
        (
            "jobs",
            [
                f"{round(r.jobs):,}, offered load {format_percent(r.offered_load)}"
                for r in comparison.shown_reports
            ],
        ),
        ("cluster", [f"{r.cluster}: {r.nodes:,} nodes, {r.gpus:,} GPUs" for r in reports]),
        ("backend", [_format_backend(comparison, i) for i in range(len(reports))]),
        ("placement", [r.place for r in reports]),
        ("seed", [str(r.seed) for r in reports] if seeds is None else []),
        ("seeds", [] if seeds is None else [", ".join(map(str, seeds.seeds))]),
        ("energy", [r.energy_method for r in reports]),
        ("durations", [r.estimate_error for r in reports]),
    ]
    return [(name, " · ".join(filter(None, dict.fromkeys(values)))) for name, values in rows]


def _format_backend(comparison: Comparison, row: int) -> str:
    backend = comparison.reports[row].backend
    if len(comparison.plot_data) != len(comparison.reports):
        return backend
    header = comparison.plot_data[row].header
    faults = dict(header.get("faults") or {})
    if "node_mtbf_s" not in faults and not faults.get("job_failure") and not faults.get("outages"):
        faults = {}  # repair times do not matter where nothing fails
    settings = {"quantum_s": header.get("quantum_s"), **dict(header.get("overheads") or {}), **faults}
    text = ", ".join(f"{name} {value}" for name, value in settings.items() if value not in (None, 0, 0.0))
    return f"{backend} ({text})" if text else backend
