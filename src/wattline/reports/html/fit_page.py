"""A page about a fit: how well do the models follow what was measured?"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from wattline.measurement.merge import merged
from wattline.measurement.settings import KNOBS
from wattline.models.fit_quality import Fitted
from wattline.models.workload import Workload
from wattline.reports.figures.fit import TITLES, error_figure, knob_figure
from wattline.reports.figures.fit_lines import lines
from wattline.reports.html.document import plot, plotly_source, section, shell, write_page
from wattline.reports.html.tables import facts
from wattline.reports.text import percent


def write_fit_page(path: str | Path, profile: str, fits: Sequence[Fitted]) -> None:
    """Write a page about the models of one profile; works without a network, needs the extra `report`."""
    write_page(path, fit_page(profile, fits, plotly_source()))


def fit_page(profile: str, fits: Sequence[Fitted], plotly: str) -> str:
    """The page as text that holds all it needs."""
    drawn = fit_figures(fits)
    points = sum(len(fit.rows) for fit in fits)
    said = [
        ("measurements", f"{points:,} in {profile}"),
        ("lines", "the fitted models"),
        ("points", "measured"),
        ("held out", "settings left out in turn and predicted from the others"),
    ]
    body = "\n".join([_summary(fits), *(_about(i, fit, drawn) for i, fit in enumerate(fits))])
    title = f"Fit of {Path(profile).name}"
    return shell(title, facts(said), body, drawn, made_from="these measurements", plotly=plotly)


def fit_figures(fits: Sequence[Fitted]) -> dict[str, Any]:
    """The plotly figures by name: `fit-0-cap_w`, …, `fit-0-errors`, `fit-1-batch`, …"""
    drawn = {}
    for i, (w, profile, held) in enumerate(fits):
        rows = merged(profile)
        for knob in _varied(w):
            drawn[f"fit-{i}-{knob}"] = knob_figure(w, rows, knob)
        drawn[f"fit-{i}-errors"] = error_figure(rows, held)
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _varied(w: Workload) -> list[str]:
    return [knob for knob in KNOBS if knob in w.measured]


def _about(number: int, fit: Fitted, drawn: dict[str, Any]) -> str:
    w, rows = fit.workload, merged(fit.rows)
    note = f"{len(fit.rows):,} points. Held out: {fit}." + ("" if w.metered else " Watts were not measured.")
    parts = [section(f"{w.model} on {w.gpu}", note)]
    for knob in _varied(w):
        if f"fit-{number}-{knob}" in drawn:
            shown, there = lines(rows, knob)
            some = f", {len(shown)} of {there} lines" if len(shown) < there else ""
            parts.append(f"<h3>Against {TITLES[knob]}{some}</h3>" + plot(f"fit-{number}-{knob}"))
    if f"fit-{number}-errors" in drawn:
        parts.append("<h3>Off at points that the fit had not seen</h3>" + plot(f"fit-{number}-errors"))
    return "\n".join(parts)


def _summary(fits: Sequence[Fitted]) -> str:
    heads = ("workload", "points", "samples/s off", "at worst", "watts off", "at worst")
    head = "".join(f"<th>{name}</th>" for name in heads)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in _cells(fit))}</tr>" for fit in fits)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cells(fit: Fitted) -> tuple[str, ...]:
    off = (fit.held.samples_error, fit.held.samples_worst, fit.held.watts_error, fit.held.watts_worst)
    return f"{fit.workload.model} on {fit.workload.gpu}", f"{len(fit.rows):,}", *map(percent, off)
