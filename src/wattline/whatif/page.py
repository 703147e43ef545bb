"""The answer of a what-if study as a page that works offline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wattline.reports.figures.style import (
    build_axis,
    build_layout,
    choose_time_unit,
    pick_colour,
    pick_symbol,
)
from wattline.reports.figures.tradeoff import choose_range, format_axis_title
from wattline.reports.html.document import render_document, write_page
from wattline.reports.text import format_change, format_seconds
from wattline.whatif.bootstrap import Ratio
from wattline.whatif.result import PolicyRow, WhatIf, World
from wattline.whatif.text import (
    describe_effect,
    describe_potential,
    describe_reproduction,
    describe_user,
    describe_world,
    list_owner_rows,
    list_policy_rows,
    list_schedule_rows,
    name_world,
)


class _AnswerPart(NamedTuple):
    title: str
    notes: list[str]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figure: str = ""
    is_text: bool = False  # the cells hold sentences


def write_answer(path: str | Path, answer: WhatIf) -> None:
    """Write the page about *answer*; needs the extra `report`."""
    write_page(path, render_answer(answer))


def render_answer(answer: WhatIf) -> str:
    """Return the page about *answer* as HTML."""
    figures = {f"front-{n}": build_front_figure(world, answer) for n, world in enumerate(answer.worlds)}
    counted = "" if answer.counted == answer.jobs else f", {answer.counted:,} of them counted"
    facts = [
        ("trace", answer.trace),
        ("jobs", f"{answer.jobs:,} in {format_seconds(answer.span_s)}{counted}"),
        ("seeds", str(answer.seeds) if answer.seeds > 1 else ""),
        ("energy", " · ".join(answer.energy_methods)),
        ("notes", " · ".join(answer.notes)),
    ]
    return render_document(
        "whatif.html",
        f"What if, on {Path(answer.trace).name}",
        facts,
        figures,
        made_from="the trace and the simulations of its jobs",
        summary=_summarize(answer),
        sections=_list_sections(answer),
    )


def _summarize(answer: WhatIf) -> list[str]:
    """Return the answer in plain sentences."""
    world = answer.worlds[0]
    base, others = world.rows[0], world.rows[1:]
    known = [row for row in others if math.isfinite(row.energy.value) and math.isfinite(row.jct.value)]
    count = "one other policy" if len(others) == 1 else f"{len(others)} other policies"
    sentences = [
        f"{answer.jobs:,} jobs of {Path(answer.trace).name} were simulated on {name_world(world)}"
        f" under {base.policy}" + (f" and {count}." if others else ".")
    ]
    if known:
        frugal = min(known, key=lambda row: row.energy.value)
        quick = min(known, key=lambda row: row.jct.value)
        sentences.append(
            f"Least energy: {frugal.policy}, {_format_ratio_change(frugal.energy)} against {base.policy}"
            f" (mean JCT {_format_ratio_change(frugal.jct)})."
        )
        sentences.append(
            f"Shortest mean JCT: {quick.policy}, {_format_ratio_change(quick.jct)} against {base.policy}"
            f" (energy {_format_ratio_change(quick.energy)})."
        )
    sentences.append("The result depends on the assumptions at the end of the page.")
    return sentences


def _format_ratio_change(ratio: Ratio) -> str:
    """Return a ratio as a change, with its interval: `−12 % (−15 % to −9.1 %)`."""
    text = format_change(ratio.value)
    return (
        f"{text} ({format_change(ratio.low)} to {format_change(ratio.high)})" if ratio.has_interval else text
    )


def _list_sections(answer: WhatIf) -> list[_AnswerPart]:
    sections = []
    header, rows = list_schedule_rows(answer)
    if rows:
        notes = [] if answer.reproduction is None else describe_reproduction(answer.reproduction)
        sections.append(_AnswerPart("The recorded schedule", notes, header, rows))
    for number, world in enumerate(answer.worlds):
        header, rows = list_policy_rows(world)
        title = f"Policies on {name_world(world)}"
        notes = describe_world(world, answer)
        if any(row.jct.has_interval or row.energy.has_interval for row in world.rows[1:]):
            notes.append("bars in the figure: the same intervals, around the mean of each policy")
        sections.append(_AnswerPart(title, notes, header, rows, f"front-{number}"))
    policies = [row.policy for row in answer.worlds[0].rows[1:]]
    if answer.teams and policies:
        header, rows = list_owner_rows(answer.teams, policies, "team")
        note = "Mean JCT in the baseline, and that of each policy over it: below 1 is sooner."
        sections.append(_AnswerPart("Teams", [note], header, rows))
    if answer.user is not None and policies:
        title = f"Jobs of {answer.user.name}"
        sections.append(_AnswerPart(title, describe_user(answer.user, policies)))
    sections.append(_AnswerPart("Sweeps and recurring jobs", describe_potential(answer.potential)))
    sections.append(
        _AnswerPart(
            "Assumptions",
            ["What the result depends on and the records do not say, and what a pessimistic value changes."],
            ("assumption", "value", "meaning", "how much it matters"),
            [(a.name, a.value, a.says, describe_effect(a)) for a in answer.assumptions],
            is_text=True,
        )
    )
    return sections


def build_front_figure(world: World, answer: WhatIf) -> dict[str, Any]:
    """Return energy against mean JCT of the policies of *world*, with the intervals of both."""
    rows = [
        r for r in world.rows if math.isfinite(r.metrics.jct_mean_s) and math.isfinite(r.metrics.energy_j)
    ]
    recorded = answer.recorded if world is answer.worlds[0] else None
    longest_s = max((r.metrics.jct_mean_s for r in rows), default=1.0)
    largest_kwh = max((r.metrics.energy_j / 3.6e6 for r in rows), default=1.0)
    unit_s, unit = choose_time_unit(longest_s)
    unit_kwh, energy_unit = (1000.0, "MWh") if largest_kwh >= 2000 else (1.0, "kWh")
    traces = [_build_point(row, n, unit_s, unit, unit_kwh, energy_unit) for n, row in enumerate(rows)]
    x = [trace["x"][0] for trace in traces]
    y = [trace["y"][0] for trace in traces]
    if recorded is not None and math.isfinite(recorded.jct_mean_s):
        x.append(recorded.energy_j / 3.6e6 / unit_kwh)
        y.append(recorded.jct_mean_s / unit_s)
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": "as recorded", "x": [x[-1]], "y": [y[-1]],
                "marker": {"size": 14, "symbol": "star", "color": "#7F7F7F"},
                "hover": [f"as recorded\n{x[-1]:.4g} {energy_unit}, mean JCT {y[-1]:.3g} {unit}"],
            }
        )  # fmt: skip
    x_range = choose_range([*x, *_list_ends(traces, "x")])
    y_range = choose_range([*y, *_list_ends(traces, "y")])
    return {
        "data": traces,
        "layout": build_layout(
            420, showlegend=True,
            xaxis=build_axis(
                format_axis_title(f"energy of the cluster ({energy_unit})", x_range), range=list(x_range)
            ),
            yaxis=build_axis(format_axis_title(f"mean JCT ({unit})", y_range), range=list(y_range)),
        ),
    }  # fmt: skip


def _list_ends(traces: Sequence[dict[str, Any]], axis: str) -> list[float]:
    """Return both ends of the bars along an *axis*."""
    bars = [(trace[axis][0], trace[f"error_{axis}"]) for trace in traces if f"error_{axis}" in trace]
    return [end for value, bar in bars for end in (value - bar["arrayminus"][0], value + bar["array"][0])]


def _build_point(
    row: PolicyRow, number: int, unit_s: float, unit: str, unit_kwh: float, energy_unit: str
) -> dict[str, Any]:
    """Return one policy; its bars are the intervals of the ratios, in the units of the axes."""
    energy, jct = row.metrics.energy_j / 3.6e6 / unit_kwh, row.metrics.jct_mean_s / unit_s
    colour = pick_colour(number)
    point: dict[str, Any] = {
        "type": "scatter", "mode": "markers", "name": row.policy, "x": [energy], "y": [jct],
        "marker": {"size": 12, "color": colour, "symbol": pick_symbol(number)},
        "hover": [f"{row.policy}\n{energy:.4g} {energy_unit}, mean JCT {jct:.3g} {unit}"],
    }  # fmt: skip
    for axis, ratio, value in (("error_x", row.energy, energy), ("error_y", row.jct, jct)):
        if ratio.has_interval and ratio.value > 0 and ratio.low < ratio.high:
            base = value / ratio.value
            point[axis] = {
                "array": [base * (ratio.high - ratio.value)],
                "arrayminus": [base * (ratio.value - ratio.low)],
            }  # fmt: skip
    return point
