"""One page of reproduced experiments that works offline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattline.papers.reproduction_text import (
    COLUMNS,
    EFFECT_COLUMNS,
    STEP_COLUMNS,
    SUMMARY_COLUMNS,
    list_effect_rows,
    list_rows,
    list_step_rows,
    list_summary,
)
from wattline.papers.results import SYNTHETIC, PaperResult, Sample
from wattline.reports.figures.style import build_axis, build_layout, pick_colour, pick_symbol
from wattline.reports.html.document import write_page
from wattline.reports.html.parts_page import PagePart, render_parts

_TICKS = (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50)


def write_reproduction_page(
    path: str | Path, found: Sequence[PaperResult], seeds: int, quick: bool, machine: str
) -> None:
    """Write the page of all experiments; needs the extra `report`."""
    write_page(path, render_reproductions(found, seeds, quick, machine))


def render_reproductions(found: Sequence[PaperResult], seeds: int, quick: bool, machine: str) -> str:
    """Return the page as HTML."""
    parts = [
        PagePart(
            "All experiments",
            "Means of the cases, least to most; every row of the tables below has its spread over seeds.",
            SUMMARY_COLUMNS,
            list_summary(found),
            "",
            "wide text",
        )
    ]
    figures = {}
    for one in found:
        note = f"Claim: {one.claim}. Original: {one.original}. {_end_sentence(one.conditions)}"
        if one.left_out:
            parts.append(PagePart(one.title, f"{note} Left out: {one.left_out}."))
            continue
        figures[one.name] = _build_figure(one)
        if one.figure == "steps":
            parts.append(PagePart(one.title, note, STEP_COLUMNS, list_step_rows(one), one.name))
            effects = (
                "Gain on top of the step before, and alone on FIFO; mean and 95 % interval of paired seeds."
            )
            parts.append(
                PagePart("What composes and what interferes", effects, EFFECT_COLUMNS, list_effect_rows(one))
            )
            continue
        notes = " ".join(_end_sentence(text) for text in one.notes)
        parts.append(PagePart(one.title, f"{note} {notes}".strip(), COLUMNS, list_rows(one), one.name))
    facts = [("seeds", str(seeds)), ("run", machine)]
    if quick:
        facts.append(("warning", "--quick: too few and too short runs, the figures mean nothing"))
    return render_parts(
        "Papers reproduced", _summarize(found), facts, parts, figures, "runs of wattline reproduce"
    )


def _end_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _summarize(found: Sequence[PaperResult]) -> list[str]:
    sentences = []
    for one, row in zip(found, list_summary(found), strict=True):
        if one.left_out:
            sentences.append(f"{one.name.capitalize()} was not run: {one.left_out}.")
        elif one.figure != "steps":
            data = "a synthetic stand-in" if SYNTHETIC in one.data else "public data"
            data = "this machine" if one.data == "measured" else data
            data = "public and synthetic data" if "," in one.data else data
            sentences.append(f"{one.title.partition(' (')[0]} claims {row[1]}; here {row[3]}, on {data}.")
    return sentences


def _build_figure(one: PaperResult) -> dict[str, Any]:
    if one.figure == "widths":
        return _build_width_figure(one)
    return _build_step_figure(one) if one.figure == "steps" else _build_case_figure(one)


def _build_case_figure(one: PaperResult) -> dict[str, Any]:
    """Return a point with its range for each case, of the original and of ours, and the claim as lines."""
    count = len(one.cases)
    data = []
    columns: dict[str, list[Sample | None]] = {
        "original": [case.original for case in one.cases],
        "ours": [case.ours for case in one.cases],
    }
    for number, (name, samples) in enumerate(columns.items()):
        pairs = [(at, sample) for at, sample in enumerate(samples) if sample is not None]
        if pairs:
            places = [at + 0.16 * (1 if number else -1) for at, _ in pairs]
            names = [one.cases[at].case for at, _ in pairs]
            data.append(_build_points(name, number, [sample for _, sample in pairs], places, names, one.unit))
    data += [
        _build_line("claim", [value, value], [-0.5, count - 0.5], 3, "dash")
        for value in (one.low, one.high)
        if math.isfinite(value)
    ]
    is_log = one.unit == "x"
    title = "gain" if is_log else "saved (%)"
    return {
        "data": data,
        "layout": build_layout(
            110 + 30 * count,
            showlegend=True,
            xaxis=_build_value_axis(title, is_log),
            yaxis=_build_name_axis([case.case for case in one.cases]),
        ),
    }


def _build_value_axis(title: str, is_log: bool) -> dict[str, Any]:
    if not is_log:
        return build_axis(title, rangemode="tozero")
    return build_axis(
        f"{title}, log scale", type="log", tickvals=list(_TICKS), ticktext=[f"{at:g}x" for at in _TICKS]
    )


def _build_name_axis(names: Sequence[str]) -> dict[str, Any]:
    return build_axis(
        "",
        tickvals=[float(at) for at in range(len(names))],
        ticktext=[name if len(name) <= 22 else f"{name[:21]}…" for name in names],
        nticks=len(names),
        showgrid=False,
        range=[len(names) - 0.5, -0.5],
    )


def _build_points(
    name: str,
    number: int,
    samples: Sequence[Sample],
    places: Sequence[float],
    labels: Sequence[str],
    unit: str,
) -> dict[str, Any]:
    means = [sample.mean for sample in samples]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": means,
        "y": list(places),
        "marker": {"color": pick_colour(number), "symbol": pick_symbol(number), "size": 8},
        "error_x": {
            "arrayminus": [sample.mean - sample.range[0] for sample in samples],
            "array": [sample.range[1] - sample.mean for sample in samples],
        },
        "hover": [f"{label}\n{name} {mean:.2f}{unit}" for label, mean in zip(labels, means, strict=True)],
    }


def _build_line(
    name: str, x: Sequence[float], y: Sequence[float], number: int, dash: str = "solid"
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": pick_colour(number), "width": 2, "dash": dash},
    }


def _build_width_figure(one: PaperResult) -> dict[str, Any]:
    """Return a curve over the width of the array for each model."""
    data = []
    for number, (name, points) in enumerate(one.extra["widths"].items()):
        line = _build_line(name, [x for x, _ in points], [y for _, y in points], number)
        line["mode"] = "lines+markers"
        line["marker"] = {"color": pick_colour(number), "symbol": pick_symbol(number), "size": 7}
        line["hover"] = [f"{name}, {x} members\n{y:.2f}x" for x, y in points]
        data.append(line)
    widths = sorted({x for points in one.extra["widths"].values() for x, _ in points})
    return {
        "data": data,
        "layout": build_layout(
            380,
            showlegend=True,
            xaxis=build_axis(
                "members of the array", type="log", tickvals=widths, ticktext=[str(at) for at in widths]
            ),
            yaxis=_build_value_axis("gain over the loop", True),
        ),
    }


def _build_step_figure(one: PaperResult) -> dict[str, Any]:
    """Return the gain over FIFO of every step, in JCT, energy and cost."""
    steps = [step["lever"] for step in one.extra["steps"][1:]]
    data = []
    for number, metric in enumerate(("JCT", "energy", "cost")):
        cases = [case for case in one.cases if case.case.endswith(f": {metric}")]
        places = [at + 0.2 * (number - 1) for at in range(len(steps))]
        data.append(_build_points(metric, number, [case.ours for case in cases], places, steps, "x"))
    return {
        "data": data,
        "layout": build_layout(
            110 + 46 * len(steps),
            showlegend=True,
            xaxis=_build_value_axis("FIFO over the step", True),
            yaxis=_build_name_axis(steps),
        ),
    }
