"""Curves that a job's session reported, from the event files of its attempts.

The files belong to the job, so nothing in them is trusted: lines that are no events are skipped.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattline.backend.engine.folder_layout import EVENTS, attempt_folders
from wattline.backend.engine.user_files import open_file
from wattline.service.attempts import CapChange

MOST_POINTS = 1000
_MAX_BYTES = 1 << 25  # of one attempt's file
_MAX_METRICS = 100

Point = tuple[float, float]
"""Time in seconds since 1970, and a value."""


@dataclass
class SessionSeries:
    """Curves by name, the caps that the session found, and whether all of the files were read."""

    progress: list[Point] = field(default_factory=list)
    energy_j: list[Point] = field(default_factory=list)
    metrics: dict[str, list[Point]] = field(default_factory=dict)
    caps: list[tuple[int, CapChange]] = field(default_factory=list)  # with the number of the attempt
    method: str = ""  # of energy_j
    is_complete: bool = True


def read_series(root: Path, job: str, span: tuple[float, float] | None = None) -> SessionSeries:
    """Return the curves of a job, each of at most `MOST_POINTS` points, with their extremes.

    With *span*, only points of that time, and one before and one after it.
    """
    series = SessionSeries()
    for folder in attempt_folders(root, job):
        for values in _read_lines(folder / EVENTS, series):
            _add(series, int(folder.name), values)
    series.progress, series.energy_j = thin(clip(series.progress, span)), thin(clip(series.energy_j, span))
    series.metrics = {name: thin(clip(points, span)) for name, points in series.metrics.items()}
    return series


def clip(points: Sequence[Point], span: tuple[float, float] | None) -> list[Point]:
    """Return the points of a curve within *span* (None: all), with one before it and one after it."""
    if span is None:
        return list(points)
    times = [at for at, _ in points]
    first, last = bisect_left(times, span[0]), bisect_right(times, span[1])
    return list(points[max(first - 1, 0) : last + 1])


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return at most *most* points: of each part of the curve its lowest and its highest, and both ends."""
    if len(points) <= most:
        return list(points)
    parts = (most - 2) // 2
    inner = points[1:-1]
    kept: list[Point] = [points[0]]
    for part in range(parts):
        chunk = inner[part * len(inner) // parts : (part + 1) * len(inner) // parts]
        low, high = (pick(range(len(chunk)), key=lambda at: chunk[at][1]) for pick in (min, max))
        kept += [chunk[at] for at in sorted({low, high})]
    return [*kept, points[-1]]


def _read_lines(path: Path, series: SessionSeries) -> Iterator[dict[str, Any]]:
    try:
        with open_file(path) as file:
            block = file.read(_MAX_BYTES + 1)
    except OSError:
        return
    if len(block) > _MAX_BYTES:
        series.is_complete = False
    for line in block[:_MAX_BYTES].split(b"\n"):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict) and _is_number(values.get("at")) and isinstance(values.get("event"), str):
            yield values


def _add(series: SessionSeries, attempt: int, values: dict[str, Any]) -> None:
    at_s = float(values["at"])
    if _is_number(values.get("fraction")) and 0 <= values["fraction"] <= 1:
        series.progress.append((at_s, float(values["fraction"])))
    if _is_number(values.get("joules")) and values["joules"] >= 0:
        series.energy_j.append((at_s, float(values["joules"])))
    if values["event"] == "began" and isinstance(values.get("method"), str):
        series.method = values["method"][:100]
    if values["event"] == "cap" and _is_number(values.get("cap_w")):
        series.caps.append((attempt, CapChange(at_s, float(values["cap_w"]), "session")))
    if values["event"] == "report" and isinstance(values.get("metrics"), dict):
        for name, value in list(values["metrics"].items())[:_MAX_METRICS]:
            name = name[:100]
            if _is_number(value) and (name in series.metrics or len(series.metrics) < _MAX_METRICS):
                series.metrics.setdefault(name, []).append((at_s, float(value)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
