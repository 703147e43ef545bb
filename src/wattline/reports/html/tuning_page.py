"""The replay of batch-size optimisers on recorded trainings as a page that works offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from wattline.reports.figures.style import build_axis, build_layout, pick_colour
from wattline.reports.html.document import write_page
from wattline.reports.html.parts_page import PagePart, render_parts

Cell = Mapping[str, Any]


def write_tuning_page(
    path: str | Path, data: str, seeds: int, eta: float, cells: Sequence[Cell], columns: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> None:  # fmt: skip
    """Write the page of a replay: *cells* as its JSON has them, and its table; needs the extra `report`."""
    names = list(cells[0]["optimizers"])
    notes = {
        "regret": "Cost beyond the best batch size, in runs of that; less is better.",
        "last_energy": "Energy of the last five recurrences, saved against the default; more is better.",
    }
    titles = {"regret": "Regret (oracle runs)", "last_energy": "Energy saved (%)"}
    figures = {name: _build_points(cells, names, name, titles[name]) for name in titles}
    parts = [PagePart("Workloads", f"Means over {seeds} seeds, with least and most.", columns, rows)]
    bars = "Points are means, bars the least and most over the seeds."
    parts += [PagePart(titles[name], f"{notes[name]} {bars}", figure=name) for name in titles]
    facts = [("data", data), ("seeds", str(seeds)), ("eta", f"{eta:g}"), ("optimizers", ", ".join(names))]
    title = f"Batch sizes tuned on {Path(data).name or data}"
    text = render_parts(title, _summarize(cells, names), facts, parts, figures, "the recorded trainings")
    write_page(path, text)


def _summarize(cells: Sequence[Cell], names: Sequence[str]) -> list[str]:
    sentences = []
    for name in names:
        saved = [cell["optimizers"][name]["last_energy"]["mean"] for cell in cells]
        shares = [share for share in saved if share is not None]
        if shares:
            sentences.append(
                f"{name}: the last five runs used {fmean(shares):.0f} % less energy than with the default "
                f"batch size, on average over {len(shares)} workloads "
                f"({min(shares):.0f} to {max(shares):.0f} %)."
            )
        known = [cell["optimizers"][name]["regret"]["mean"] for cell in cells]
        reached = [regret for regret in known if regret is not None]
        if reached:
            sentences.append(
                f"{name}: mean regret {fmean(reached):.2f} oracle runs over {len(reached)} workloads."
            )
        if len(reached) < len(known):
            sentences.append(f"{name}: {len(known) - len(reached)} workloads never reached the target.")
    return sentences


def _build_points(cells: Sequence[Cell], names: Sequence[str], figure: str, title: str) -> dict[str, Any]:
    """Return a point with a bar for each workload and optimiser."""
    traces = []
    for number, name in enumerate(names):
        shown = [
            (row, cell["optimizers"][name][figure])
            for row, cell in enumerate(cells)
            if cell["optimizers"][name][figure]["mean"] is not None
        ]
        means = [one["mean"] for _, one in shown]
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": name,
                "x": means, "y": [row + 0.22 * (number - (len(names) - 1) / 2) for row, _ in shown],
                "marker": {"size": 9, "color": pick_colour(number)},
                "error_x": {
                    "array": [one["max"] - one["mean"] for _, one in shown],
                    "arrayminus": [one["mean"] - one["min"] for _, one in shown],
                },
                "hover": [
                    f"{name}, {_name(cells[row])}\n{one['mean']:.3g} ({one['min']:.3g} to {one['max']:.3g})"
                    for row, one in shown
                ],
            }
        )  # fmt: skip
    return {
        "data": traces,
        "layout": build_layout(
            110 + 34 * len(cells), showlegend=len(names) > 1,
            xaxis=build_axis(title, rangemode="tozero"),
            yaxis=build_axis(
                "", tickvals=list(range(len(cells))), ticktext=[_name(cell) for cell in cells],
                nticks=len(cells), showgrid=True, range=[len(cells) - 0.5, -0.5],
            ),
        ),
    }  # fmt: skip


def _name(cell: Cell) -> str:
    return f"{cell['workload']}, {cell['gpu']}"
