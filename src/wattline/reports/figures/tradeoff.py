"""What does a shorter JCT cost in energy: the runs as points, and the front that none beats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from wattline.reports.data.pareto_front import front
from wattline.reports.equal_energy import Swept
from wattline.reports.figures.labels import Box, Label, place
from wattline.reports.figures.style import axis, colour, layout, symbol, time_unit
from wattline.reports.run_names import names
from wattline.reports.summary import Report

_WIDE, _HIGH = 1090, 340  # pixels of the plot where the window has 1280; labels are placed for these


@dataclass(frozen=True)
class Tradeoff:
    """Points in units for people, with names that do not cover each other."""

    name: tuple[str, ...]
    number: tuple[int, ...]  # of the run
    energy: tuple[float, ...]
    energy_unit: str
    jct: tuple[float, ...]
    jct_unit: str
    front: tuple[int, ...]  # rows, from the least energy to the most
    energy_range: tuple[float, float]
    jct_range: tuple[float, float]
    label: tuple[Label, ...]
    swept: tuple[tuple[float, float, float], ...] = ()  # eta, energy and JCT of the runs of one policy


def tradeoff(
    reports: Sequence[Report], wide: float, high: float, font_px: float = 13, swept: Swept | None = None
) -> Tradeoff:
    """The runs that have both figures, for a plot of *wide* x *high* pixels, and those of a sweep."""
    rows = [i for i, r in enumerate(reports) if _known(r)]
    more = [(eta, r) for eta, r in zip(swept.eta, swept.reports, strict=True) if _known(r)] if swept else []
    called, best = names(reports), front(reports)
    seen = [*(reports[i] for i in rows), *(r for _, r in more)]
    unit_kwh, energy_unit = (
        (1000.0, "MWh") if max((r.energy_kwh for r in seen), default=0) >= 2000 else (1.0, "kWh")
    )
    unit_s, jct_unit = time_unit(max((r.jct_mean_s for r in seen), default=0.0))
    every = [(r.energy_kwh / unit_kwh, r.jct_mean_s / unit_s) for r in seen]
    x_range, y_range = _range([x for x, _ in every]), _range([y for _, y in every])
    spots = [(wide * _share(x, x_range), high * (1 - _share(y, y_range))) for x, y in every]
    points, pixels = every[: len(rows)], spots[: len(rows)]
    energy, jct = [x for x, _ in points], [y for _, y in points]
    texts = [called[i] for i in rows]
    order = sorted((k for k, i in enumerate(rows) if best[i]), key=lambda k: (energy[k], jct[k]))
    covered = [*_stairs([pixels[k] for k in order]), *_along(spots[len(rows) :])]
    return Tradeoff(
        name=tuple(texts),
        number=tuple(rows),
        energy=tuple(energy),
        energy_unit=energy_unit,
        jct=tuple(jct),
        jct_unit=jct_unit,
        front=tuple(order),
        energy_range=x_range,
        jct_range=y_range,
        label=tuple(place(pixels, texts, (0, 0, wide, high), covered, font_px)),
        swept=tuple((eta, x, y) for (eta, _), (x, y) in zip(more, every[len(rows) :], strict=True)),
    )


def _known(r: Report) -> bool:
    return math.isfinite(r.energy_j) and math.isfinite(r.jct_mean_s)


def _share(value: float, within: tuple[float, float]) -> float:
    return (value - within[0]) / (within[1] - within[0])


def _stairs(points: Sequence[tuple[float, float]]) -> list[Box]:
    """What the line of the front covers: from each point to the right, then down to the next."""
    boxes: list[Box] = []
    for (x, y), (next_x, next_y) in pairwise(points):
        boxes += ((x, y - 2, next_x, y + 2), (next_x - 2, y, next_x + 2, next_y))
    return boxes


def _along(points: Sequence[tuple[float, float]]) -> list[Box]:
    """What a line through *points* covers, roughly: a small box at each and at three places between two."""
    spots = [*points]
    for (x, y), (to_x, to_y) in pairwise(points):
        spots += [(x + part * (to_x - x), y + part * (to_y - y)) for part in (0.25, 0.5, 0.75)]
    return [(x - 4, y - 4, x + 4, y + 4) for x, y in spots]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Room around all values; never from zero, since what counts is the differences."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.14 * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room


def tradeoff_figure(reports: Sequence[Report], swept: Swept | None = None) -> dict[str, Any]:
    """The plot for the page; what one policy can do is a line through its runs."""
    seen = tradeoff(reports, _WIDE, _HIGH, swept=swept)
    anchors = {"start": "left", "middle": "center", "end": "right"}
    line = {
        "type": "scatter", "mode": "lines", "hoverinfo": "skip", "name": "Pareto front",
        "x": [seen.energy[k] for k in seen.front], "y": [seen.jct[k] for k in seen.front],
        "line": {"color": "#7F7F7F", "width": 1.5, "dash": "dot", "shape": "hv"},
    }  # fmt: skip
    dots = {
        "type": "scatter", "mode": "markers", "text": [escape(name) for name in seen.name],
        "x": list(seen.energy), "y": list(seen.jct),
        "marker": {
            "size": 12, "color": [colour(i) for i in seen.number], "symbol": [symbol(i) for i in seen.number],
        },
        "hovertemplate": f"%{{text}}<br>%{{x:.4~g}} {seen.energy_unit}, "
        f"mean JCT %{{y:.3~g}} {seen.jct_unit}<extra></extra>",
    }  # fmt: skip
    notes = [
        {
            "x": seen.energy[k], "y": seen.jct[k], "text": escape(seen.name[k]), "font": {"size": 13},
            "xanchor": anchors[spot.anchor], "yanchor": "middle", **_leader(spot),
        }
        for k, spot in enumerate(seen.label)
    ]  # fmt: skip
    return {
        "data": [line, *_sweep_line(seen, swept), dots],
        "layout": layout(
            420, showlegend=False, annotations=notes,
            xaxis=axis(f"energy of the cluster ({seen.energy_unit})", range=list(seen.energy_range)),
            yaxis=axis(f"mean JCT ({seen.jct_unit})", range=list(seen.jct_range)),
        ),
    }  # fmt: skip


def _sweep_line(seen: Tradeoff, swept: Swept | None) -> list[dict[str, Any]]:
    if swept is None or not seen.swept:
        return []
    eta, energy, jct = (list(column) for column in zip(*seen.swept, strict=True))
    name = escape(swept.policy)
    return [
        {
            "type": "scatter", "mode": "lines+markers+text", "name": name,
            "x": energy, "y": jct, "customdata": eta, "cliponaxis": False,
            "text": [f"<br>eta {value:g}" if value in (eta[0], eta[-1]) else "" for value in eta],
            "textposition": "bottom center", "textfont": {"size": 11},
            "line": {"color": colour(swept.number), "width": 1.5}, "marker": {"size": 5},
            "hovertemplate": f"{name}, eta %{{customdata:.3~g}}<br>%{{x:.4~g}} {seen.energy_unit}, "
            f"mean JCT %{{y:.3~g}} {seen.jct_unit}<extra></extra>",
        }
    ]  # fmt: skip


def _leader(spot: Label) -> dict[str, Any]:
    """Where plotly writes a name, with a thin line to its point where the name is far."""
    if not spot.far:
        return {"showarrow": False, "xshift": spot.dx, "yshift": -spot.dy}
    return {
        "showarrow": True, "ax": spot.dx, "ay": spot.dy, "arrowhead": 0, "arrowwidth": 0.8,
        "arrowcolor": "#7F7F7F", "standoff": 7,
    }  # fmt: skip
