"""A page with everything about one run, or about several side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from wattline.loop.runlog import Log
from wattline.reports.compare import Comparison, compare
from wattline.reports.data.digest import Digest
from wattline.reports.equal_energy import Equal, equal_notes, equal_table, equal_title
from wattline.reports.figures.curves import jct_figure, time_figure
from wattline.reports.figures.nodes import nodes_figures
from wattline.reports.figures.tradeoff import tradeoff_figure
from wattline.reports.html.document import plot, plotly_source, section, shell, write_page
from wattline.reports.html.tables import cards, comparison_table, facts
from wattline.reports.knob_search import Figure
from wattline.reports.run_names import names
from wattline.reports.summary import Report
from wattline.reports.text import percent

Run = Log | Digest | Report


def write_html(path: str | Path, runs: Run | Comparison | Iterable[Run]) -> None:
    """Write a page about *runs* that works without a network; needs the extra `report`.

    Logs and digests get all plots; of a mere report there are no curves to show.
    """
    if isinstance(runs, Log | Digest | Report):
        runs = (runs,)
    seen = runs if isinstance(runs, Comparison) else compare(*runs)
    write_page(path, page(seen, plotly_source()))


def page(seen: Comparison, plotly: str) -> str:
    """The page about the runs of *seen*, as text that holds all it needs."""
    drawn = figures(seen)
    body = _body(seen, drawn)
    return shell(_title(seen), facts(_facts(seen)), body, drawn, made_from="the run log", plotly=plotly)


def figures(seen: Comparison) -> dict[str, Any]:
    """The plotly figures of a page by name: `tradeoff`, `jct`, `time`, and `nodes-0`, `nodes-1`, …"""
    drawn: dict[str, Any] = {}
    if (len(seen.reports) > 1 or seen.swept) and any(seen.front):
        drawn["tradeoff"] = tradeoff_figure(seen.reports, seen.swept)
    if seen.digests:
        called = [escape(name) for name in names(seen.reports)]  # plotly reads tags in text
        drawn["jct"] = jct_figure(seen.digests, called)
        drawn["time"] = time_figure(seen.digests, called)
        for i, figure in enumerate(nodes_figures([d.gantt for d in seen.digests])):
            drawn[f"nodes-{i}"] = figure
    return drawn


def _body(seen: Comparison, drawn: Mapping[str, Any]) -> str:
    parts = [cards(seen.reports[0])] if len(seen.reports) == 1 else [_summary(seen)]
    parts += [] if seen.equal_energy is None else [_equal(seen.equal_energy, "energy_j")]
    parts += [] if seen.equal_jct is None else [_equal(seen.equal_jct, "jct_mean_s")]
    for name, title, note in _PLOTS:
        if name in drawn:
            chooser = _chooser(seen.digests) if name == "nodes-0" else ""
            if name == "tradeoff" and seen.swept:
                note += f" The solid line is what {seen.swept.policy} does with other etas: it may beat them."
            parts.append(section(title, note) + chooser + plot(name))
    return "\n".join(parts)


_PLOTS = (
    (
        "tradeoff",
        "Energy and mean JCT",
        "None beats the runs on the dotted line in both. Lower left is better.",
    ),
    ("jct", "How long jobs took", "Share of the finished jobs that were done within a time."),
    ("time", "Over time", "Zoom into queue, GPUs or power and the others follow. Double-click to zoom out."),
    ("nodes-0", "Nodes", "GPUs held on each node; hatched or pale where it is off, booting or down."),
)


def _summary(seen: Comparison) -> str:
    note = f"Ratios are to {names(seen.reports)[0]}; the best of each column is blue; "
    note += "◆ marks the Pareto front of energy and mean JCT."
    if seen.differs:
        note += f" Beware: these runs differ in {', '.join(seen.differs)}."
    return section("Summary", note) + comparison_table(seen)


def _equal(rows: Sequence[Equal], figure: Figure) -> str:
    notes = "; ".join(equal_notes(rows, figure))
    return section(equal_title(rows, figure), notes) + (equal_table(rows) if rows else "")


def _chooser(digests: Sequence[Digest]) -> str:
    if len(digests) < 2:
        return ""
    called = names([d.report for d in digests])
    options = "".join(f'<option value="nodes-{i}">{escape(name)}</option>' for i, name in enumerate(called))
    return f'<label>run <select id="run">{options}</select></label>'


def _title(seen: Comparison) -> str:
    traces = {r.trace for r in seen.reports}
    trace = f" on {Path(traces.pop()).name}" if len(traces) == 1 and all(traces) else ""
    if len(seen.reports) == 1:
        return f"{names(seen.reports)[0]}{trace}"
    return f"{len(seen.reports)} runs compared{trace}"


def _facts(seen: Comparison) -> list[tuple[str, str]]:
    """What is said of each run, once where it is the same for all."""
    reports = seen.reports
    rows = [
        ("trace", [r.trace or "not named" for r in reports]),
        ("jobs", [f"{r.jobs:,}, offered load {percent(r.offered_load)}" for r in reports]),
        ("cluster", [f"{r.cluster}: {r.nodes:,} nodes, {r.gpus:,} GPUs" for r in reports]),
        ("backend", [_backend(seen, i) for i in range(len(reports))]),
        ("placement", [r.place for r in reports]),
        ("seed", [str(r.seed) for r in reports]),
        ("energy", [r.energy_method for r in reports]),
    ]
    said = [(name, " · ".join(dict.fromkeys(values))) for name, values in rows]
    exact = dict.fromkeys(r.policy for r in reports)
    return [("policy" if len(reports) == 1 else "policies", " · ".join(exact)), *said]


def _backend(seen: Comparison, row: int) -> str:
    if len(seen.digests) != len(seen.reports):
        return seen.reports[row].backend
    header = seen.digests[row].header
    faults = dict(header.get("faults") or {})
    if "node_mtbf_s" not in faults and not faults.get("job_failure"):
        faults = {}  # how what never breaks would be repaired
    known = {"quantum_s": header.get("quantum_s"), **dict(header.get("overheads") or {}), **faults}
    knobs = ", ".join(f"{name} {value}" for name, value in known.items() if value not in (None, 0, 0.0))
    return f"{seen.reports[row].backend} ({knobs})" if knobs else seen.reports[row].backend
