"""The bill of a month as a page that works offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wattline.reports.figures.style import build_axis, build_layout, pick_colour
from wattline.reports.html.document import write_page
from wattline.reports.html.parts_page import PagePart, render_parts
from wattline.units import format_joules, format_joules_alike, pluralize

Line = Mapping[str, Any]
_KWH_J = 3.6e6
_MOST_BARS = 20


def write_bill_page(path: str | Path, bill: Mapping[str, Any]) -> None:
    """Write the page of a bill as `GET /bill` returns it; needs the extra `report`."""
    write_page(path, render_bill(bill))


def render_bill(bill: Mapping[str, Any]) -> str:
    """Return the page of a bill as HTML."""
    owner = "all teams" if bill["team"] is None else f"team {bill['team']}"
    total = bill["total"]
    figures, parts = {}, []
    for level in ("team", "user"):
        lines = [{**line, "name": line["name"] or "-"} for line in bill[f"{level}s"]]
        names = [(line["name"],) for line in lines]
        figure = f"energy-{level}" if any(line["energy_j"] for line in lines) else ""
        if figure:
            figures[figure] = _build_bars(lines)
        rows = _list_rows(names, lines, bill["currency"])
        parts.append(PagePart(f"By {level}", _note_bars(lines), (level, *_COLUMNS), rows, figure))
    jobs = [(one["job"], one["name"], one["user"], one["team"], one["state"]) for one in bill["jobs"]]
    columns = ("job", "name", "user", "team", "state", *_COLUMNS)
    parts.append(
        PagePart("Jobs", "Every job that ran in this month.", columns,
                 _list_rows(jobs, bill["jobs"], bill["currency"]))
    )  # fmt: skip
    note = "Each against its own baseline; they overlap, so they have no sum."
    savings = [_list_saving(one) for one in bill["savings"]]
    parts.append(PagePart("Savings", note, _SAVING_COLUMNS, savings, "", "wide text"))
    facts = [
        ("month", f"{bill['month']} (UTC)"),
        ("method", f"{', '.join(total['methods'])}; {bill['method']}".lstrip("; ")),
        ("notes", " · ".join(bill["notes"])),
    ]
    title = f"Bill of {owner}, {bill['month']}"
    return render_parts(title, _summarize(bill), facts, parts, figures, "the events of the service")


_COLUMNS = ("GPU h", "energy", "money", "kg CO₂", "method")
_SAVING_COLUMNS = ("by", "saved", "standard error", "in jobs that used", "against", "not estimated")


def _summarize(bill: Mapping[str, Any]) -> list[str]:
    total = bill["total"]
    if not total["jobs"]:
        return ["No job ran in this month."]
    energy = "an unknown amount of energy" if total["energy_j"] is None else format_joules(total["energy_j"])
    text = f"{pluralize(total['jobs'], 'job')} used {energy} in {total['gpu_hours']:.3g} GPU hours"
    text += (
        "" if total["money"] is None else f", which cost {_format_money(total['money'], bill['currency'])}"
    )
    text += "" if total["co2_kg"] is None else f" and emitted {total['co2_kg']:.3g} kg CO₂"
    sentences = [f"{text}."]
    if total["unknown_attempts"]:
        count = pluralize(total["unknown_attempts"], "attempt")
        sentences.append(f"The energy of {count} is unknown and not part of this.")
    for one in bill["savings"]:
        if one["saved_j"] is not None:
            verb = "saved" if one["saved_j"] >= 0 else "cost"
            error = "error unknown" if one["error_j"] is None else f"± {format_joules(one['error_j'])}"
            amount = format_joules(abs(one["saved_j"]))
            sentences.append(
                f"{one['name'].capitalize()} {verb} {amount} ({error}) against {one['baseline']}."
            )
    return sentences


def _format_money(money: float, currency: str) -> str:
    text = f"{money:,.2f}" if abs(money) >= 1 or money == 0 else f"{money:.3g}"
    return f"{text} {currency}".rstrip()


def _list_rows(names: Sequence[Sequence[str]], lines: Sequence[Line], currency: str) -> list[tuple[str, ...]]:
    energies = format_joules_alike([line["energy_j"] or 0.0 for line in lines])
    return [
        (
            *name,
            f"{line['gpu_hours']:.3g}",
            "unknown" if line["energy_j"] is None else energy,
            "-" if line["money"] is None else _format_money(line["money"], currency),
            "-" if line["co2_kg"] is None else f"{line['co2_kg']:.3g}",
            ", ".join(line["methods"]),
        )
        for name, line, energy in zip(names, lines, energies, strict=True)
    ]


def _note_bars(lines: Sequence[Line]) -> str:
    return f"The {_MOST_BARS} with most energy are drawn." if len(lines) > _MOST_BARS else ""


def _build_bars(lines: Sequence[Line]) -> dict[str, Any]:
    """Return a bar for each line, from 0."""
    known = sorted((one for one in lines if one["energy_j"]), key=lambda one: -one["energy_j"])[:_MOST_BARS]
    kwh = [one["energy_j"] / _KWH_J for one in known]
    unit, scale = ("kWh", 1.0) if max(kwh) >= 1 else ("Wh", 1000.0)
    bars = {
        "type": "bar",
        "base": [0.0] * len(known),
        "x": [scale * value for value in kwh],
        "y": [float(row) for row in range(len(known))],
        "width": [0.7] * len(known),
        "marker": {"color": [pick_colour(0)] * len(known)},
        "hover": [f"{one['name']}\n{format_joules(one['energy_j'])}" for one in known],
    }
    return {
        "data": [bars],
        "layout": build_layout(
            90 + 26 * len(known),
            showlegend=False,
            xaxis=build_axis(f"energy ({unit})", range=[0.0, 1.05 * scale * max(kwh)]),
            yaxis=build_axis(
                "",
                tickvals=bars["y"],
                ticktext=[_shorten(str(one["name"])) for one in known],
                nticks=len(known),
                showgrid=False,
                range=[len(known) - 0.5, -0.5],
            ),
        ),
    }


def _shorten(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:19]}…"


def _list_saving(one: Mapping[str, Any]) -> tuple[str, ...]:
    reasons = "; ".join(f"{count} × {reason}" for reason, count in one["reasons"].items())
    return (
        one["name"],
        "-" if one["saved_j"] is None else format_joules(one["saved_j"]),
        "unknown" if one["error_j"] is None else f"± {format_joules(one['error_j'])}",
        f"{one['jobs']:,}: {format_joules(one['energy_j'])}",
        one["baseline"],
        f"{format_joules(one['not_estimated_j'])}: {reasons}" if reasons else "-",
    )
