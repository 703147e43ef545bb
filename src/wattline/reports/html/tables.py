"""The figures of runs as HTML tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from wattline.reports.compare import Comparison
from wattline.reports.figures.style import colour
from wattline.reports.run_names import names
from wattline.reports.summary import Report
from wattline.reports.text import energy_parts, joules, money, number, percent, seconds


class _Column(NamedTuple):
    head: str
    name: str
    show: Callable[[float], str]
    best: Callable[[Sequence[float]], float] | None = min  # None: neither more nor less is better


def _count(value: float) -> str:
    return f"{value:,}"


_COLUMNS = (
    _Column("finished", "finished", _count, None),
    _Column("mean JCT", "jct_mean_s", seconds),
    _Column("p50", "jct_p50_s", seconds),
    _Column("p99", "jct_p99_s", seconds),
    _Column("mean wait", "wait_mean_s", seconds),
    _Column("makespan", "makespan_s", seconds),
    _Column("energy", "energy_j", joules),
    _Column("cost", "cost", money),
    _Column("GPUs held", "gpu_utilisation", percent, None),
    _Column("stops", "preemptions", _count, None),
    _Column("late", "deadline_misses", _count),
    _Column("slowdown p99", "ftf_p99", number),
)


def comparison_table(seen: Comparison) -> str:
    """One row per run; the best of a column stands out, ratios to the first run are beside."""
    reports, called, ratios = seen.reports, names(seen.reports), seen.ratios
    none = {
        "deadline_misses": not any(r.deadline_jobs for r in reports),
        "cost": not any(math.isfinite(r.cost) for r in reports),
    }
    columns = [c for c in _COLUMNS if not none.get(c.name)]
    best = {c.name: _best(c, [getattr(r, c.name) for r in reports]) for c in columns}
    head = "".join(f"<th>{escape(c.head)}</th>" for c in columns)
    rows = []
    for i, r in enumerate(reports):
        mark = ' <b title="Pareto front">◆</b>' if seen.front[i] else ""
        cells = [f'<td><i class="key" style="background:{colour(i)}"></i>{escape(called[i])}{mark}</td>']
        for c in columns:
            value = getattr(r, c.name)
            ratio = ratios[c.name][i] if i and c.name in ratios else math.nan
            beside = f"<small>×{ratio:.2f}</small>" if math.isfinite(ratio) else ""
            best_mark = ' class="best"' if value == best[c.name] else ""
            cells.append(f"<td{best_mark}>{escape(c.show(value))}{beside}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="wide"><table><thead><tr><th>policy</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _best(column: _Column, values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    if column.best is None or len(set(known)) < 2:
        return math.nan
    return column.best(known)


def cards(r: Report) -> str:
    """Everything about one run, in groups."""
    late = f"{r.deadline_misses:,} of {r.deadline_jobs:,}" if r.deadline_jobs else "none set"
    groups = (
        ("Jobs", (
            ("arrived", _count(r.jobs)), ("finished", _count(r.finished)), ("failed", _count(r.failed)),
            ("unfinished", _count(r.unfinished)), ("deadlines missed", late),
            ("late by, on average", seconds(r.tardiness_mean_s)),
        )),
        ("JCT, submission to end", (
            ("mean", seconds(r.jct_mean_s)), ("median", seconds(r.jct_p50_s)), ("p90", seconds(r.jct_p90_s)),
            ("p99", seconds(r.jct_p99_s)), ("longest", seconds(r.jct_max_s)),
            ("JCT / run time, p99", number(r.ftf_p99)),
        )),
        ("Waiting without GPUs", (
            ("mean", seconds(r.wait_mean_s)), ("median", seconds(r.wait_p50_s)),
            ("p90", seconds(r.wait_p90_s)), ("p99", seconds(r.wait_p99_s)),
            ("to first start, mean", seconds(r.start_delay_mean_s)),
        )),
        ("Cluster", (
            ("makespan", seconds(r.makespan_s)), ("GPUs held", percent(r.gpu_utilisation)),
            ("offered load", percent(r.offered_load)), ("fragmented", percent(r.fragmentation)),
            ("preemptions", _count(r.preemptions)), ("restarts", _count(r.restarts)),
            ("losses", _count(r.losses)), *_switches(r),
        )),
        ("Energy", (
            ("total", joules(r.energy_j)), *_parts(r), ("per GPU-hour", _per_gpu_hour(r)), *_paid(r),
        )),
    )  # fmt: skip
    return f'<div class="cards">{"".join(_card(title, rows) for title, rows in groups)}</div>'


def _parts(r: Report) -> list[tuple[str, str]]:
    return [
        (name, f"{joules(value)}, {100 * value / r.energy_j:.0f} %")
        for name, value in energy_parts(r)
        if value >= 0 and r.energy_j > 0
    ]


def _paid(r: Report) -> list[tuple[str, str]]:
    """What only runs with a price have: money, and how good decisions were."""
    rows = (
        ("cost of energy", money(r.energy_cost)),
        ("of being late", money(r.tardiness_cost) if math.isfinite(r.cost) else "-"),
        ("from the best decision, at most", f"{100 * r.gap_max:.2g} %" if math.isfinite(r.gap_max) else "-"),
    )
    return [(name, value) for name, value in rows if value != "-"]


def _switches(r: Report) -> list[tuple[str, str]]:
    """What only runs that use it have: caps, switches and arrays."""
    counts = (("caps changed", r.retunes), ("nodes switched on", r.boots), ("jobs fused", r.fused_jobs))
    return [(name, _count(count)) for name, count in counts if count]


def _per_gpu_hour(r: Report) -> str:
    return joules(r.energy_j / r.gpu_hours) if r.gpu_hours > 0 and math.isfinite(r.energy_j) else "-"


def _card(title: str, rows: Sequence[tuple[str, str]]) -> str:
    lines = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<section class="card"><h3>{escape(title)}</h3><table>{lines}</table></section>'


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """A list of what is said once about all runs; empty facts are left out."""
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows if value)
    return f'<dl class="facts">{lines}</dl>'
