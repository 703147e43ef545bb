"""Page about the fitted models of one profile and their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wattline.measurement.merge import merged
from wattline.measurement.settings import KNOBS
from wattline.models.fit_quality import FittedWorkload
from wattline.models.workload import Workload
from wattline.reports.figures.fit import TITLES, build_error_figure, build_knob_figure
from wattline.reports.figures.fit_lines import group_lines
from wattline.reports.html.document import render_document, write_page
from wattline.reports.text import format_percent

_COLUMNS = ("workload", "points", "samples/s off", "at worst", "watts off", "at worst")


class _FitSection(NamedTuple):
    title: str
    note: str
    plots: list[tuple[str, str]]  # title and name of the figure


def write_fit_page(path: str | Path, profile: str, fits: Sequence[FittedWorkload]) -> None:
    """Write a page about the models of one profile; it works offline and needs the extra `report`."""
    write_page(path, render_fit_page(profile, fits))


def render_fit_page(profile: str, fits: Sequence[FittedWorkload]) -> str:
    """Return the page as HTML."""
    figures = build_fit_figures(fits)
    points = sum(len(fit.rows) for fit in fits)
    facts = [
        ("measurements", f"{points:,} in {profile}"),
        ("lines", "the fitted models"),
        ("points", "measured"),
        ("held out", "settings left out in turn and predicted from the others"),
    ]
    return render_document(
        "fit_page.html",
        f"Fit of {Path(profile).name}",
        facts,
        figures,
        made_from="these measurements",
        summary=[_summarize_fit(fit) for fit in fits],
        columns=_COLUMNS,
        rows=[_format_row(fit) for fit in fits],
        fits=[_describe_fit(number, fit, figures) for number, fit in enumerate(fits)],
    )


def build_fit_figures(fits: Sequence[FittedWorkload]) -> dict[str, Any]:
    """Return the figures by name: `fit-0-cap_w`, …, `fit-0-errors`, `fit-1-batch`, …"""
    figures = {}
    for number, fit in enumerate(fits):
        workload, rows = fit.workload, merged(fit.rows)
        for knob in _list_varied_knobs(workload):
            figures[f"fit-{number}-{knob}"] = build_knob_figure(workload, rows, knob)
        figures[f"fit-{number}-errors"] = build_error_figure(rows, fit.held_out)
    return {name: figure for name, figure in figures.items() if figure is not None}


def _summarize_fit(fit: FittedWorkload) -> str:
    name, errors = f"{fit.workload.model} on {fit.workload.gpu}", fit.held_out
    samples = format_percent(errors.samples_error)
    watts = format_percent(errors.watts_error) if fit.workload.metered else "-"
    if samples == "-":
        return f"{name}: too few points to leave any out, so its error is not known."
    text = f"{name}: settings that the fit had not seen are {samples} off in samples/s"
    return (
        f"{text} and {watts} in watts, on average." if watts != "-" else f"{text}, on average; watts unknown."
    )


def _list_varied_knobs(workload: Workload) -> list[str]:
    return [knob for knob in KNOBS if knob in workload.measured]


def _describe_fit(number: int, fit: FittedWorkload, figures: Mapping[str, Any]) -> _FitSection:
    workload, rows = fit.workload, merged(fit.rows)
    note = f"{len(fit.rows):,} points. Held out: {fit}."
    note += "" if workload.metered else " Watts were not measured."
    note += "".join(f" {str(law)[0].upper()}{str(law)[1:]}." for law in fit.laws)
    plots = []
    for knob in _list_varied_knobs(workload):
        if f"fit-{number}-{knob}" in figures:
            shown, line_count = group_lines(rows, knob)
            some = f", {len(shown)} of {line_count} lines" if len(shown) < line_count else ""
            plots.append((f"Against {TITLES[knob]}{some}", f"fit-{number}-{knob}"))
    if f"fit-{number}-errors" in figures:
        plots.append(("Off at points that the fit had not seen", f"fit-{number}-errors"))
    return _FitSection(f"{workload.model} on {workload.gpu}", note, plots)


def _format_row(fit: FittedWorkload) -> tuple[str, ...]:
    errors = (
        fit.held_out.samples_error,
        fit.held_out.samples_worst,
        fit.held_out.watts_error,
        fit.held_out.watts_worst,
    )
    workload = f"{fit.workload.model} on {fit.workload.gpu}"
    return workload, f"{len(fit.rows):,}", *map(format_percent, errors)
