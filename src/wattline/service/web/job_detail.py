"""The page of a job: its attempts, caps and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo

from wattline.service.attempts import AttemptHistory, read_attempts
from wattline.service.controller import Controller
from wattline.service.session_series import Point, read_series
from wattline.service.storage.projection import JobRow
from wattline.service.web.charts import PageChart, PageCurve, Span, draw_chart

_BAD = ("FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT")
_MOST_CHARTS = 12
_STEPS = 500  # of the power


@dataclass(frozen=True)
class TimelinePart:
    """A part of a job's time, in a picture that is 1000 wide."""

    x: float
    width: float
    kind: str  # waited, ran or failed
    text: str


@dataclass(frozen=True)
class JobDetail:
    """Attempts and curves of a job."""

    attempts: list[AttemptHistory]
    timeline: list[TimelinePart]
    charts: list[PageChart]
    is_complete: bool  # all of its reports were read


def build_job_detail(
    controller: Controller, row: JobRow, zone: tzinfo, zoom: Span | None = None
) -> JobDetail:
    """Return attempts, caps and curves of a job; *zoom* is the time of the curves."""
    attempts = read_attempts(controller.store, row.id, row.submission["spec"].get("power_w"))
    series = read_series(controller.folder, row.id, zoom)
    for number, cap in series.caps:
        for attempt in attempts:
            if attempt.number == number:
                attempt.caps.append(cap)
                attempt.caps.sort(key=lambda change: change.at_s)
    now_s = controller.clock() if row.end_s is None else row.end_s
    starts = [attempt.start_s for attempt in attempts[1:]]
    progress = [(at_s, 100 * fraction) for at_s, fraction in series.progress]
    charts = [
        _draw_power(controller, row, attempts, now_s, zone, zoom),
        draw_chart(
            "Progress", "%", [PageCurve("progress", _break_at(progress, starts), "main")], zone, span=zoom
        ),
        *(
            draw_chart(name, "", [PageCurve(name, _break_at(points, starts), "main")], zone, span=zoom)
            for name, points in sorted(series.metrics.items())[:_MOST_CHARTS]
        ),
    ]
    if series.energy_j:
        title = f"Energy by its session ({series.method or 'method not reported'})"
        charts.append(
            draw_chart(
                title, "J", [PageCurve("energy", _break_at(series.energy_j, starts), "main")], zone, span=zoom
            )
        )
    return JobDetail(
        attempts,
        _build_timeline(row.submit_s, attempts, now_s),
        [chart for chart in charts if chart is not None],
        series.is_complete,
    )


def _break_at(points: Sequence[Point], times: Sequence[float]) -> list[tuple[float, float | None]]:
    """Return a curve with gaps at *times*, which are sorted: between attempts nothing was reported."""
    broken: list[tuple[float, float | None]] = []
    rest = list(times)
    for at_s, value in points:
        if rest and rest[0] <= at_s:
            if broken:
                broken.append((rest[0], None))
            rest = [time_s for time_s in rest if time_s > at_s]
        broken.append((at_s, value))
    return broken


def _draw_power(
    controller: Controller,
    row: JobRow,
    attempts: list[AttemptHistory],
    now_s: float,
    zone: tzinfo,
    zoom: Span | None,
) -> PageChart | None:
    """Draw the power of a job's GPUs and the sum of their caps: samples of every 10 s, or means of steps."""
    if not attempts:
        return None
    span = zoom or (attempts[0].start_s, now_s)
    step_s = max((span[1] - span[0]) / _STEPS, 10.0)
    found = controller.store.read_rows(
        "SELECT min(at_s), avg(power_w), max(cap_w), sum(gpus), sum(known) FROM ("
        " SELECT at_s, sum(power_w) AS power_w, sum(cap_w) AS cap_w, count(*) AS gpus,"
        "  count(power_w) AS known FROM power_sample"
        "  WHERE at_s >= ? AND at_s <= ? AND ',' || jobs || ',' LIKE ? GROUP BY at_s"
        ") GROUP BY CAST(at_s / ? AS INTEGER) ORDER BY 1",
        (span[0] - step_s, span[1] + step_s, f"%,{row.id},%", step_s),
    )
    power: list[tuple[float, float | None]] = []
    for at_s, power_w, _, count, known in found:
        if power and at_s - power[-1][0] > 3 * step_s:
            power.append((at_s, None))
        power.append((at_s, power_w if count == known else None))
    lines = [PageCurve("power of its GPUs", power, "main")]
    lines.append(PageCurve("sum of their caps", [(one[0], one[2]) for one in found], "second", steps=True))
    return draw_chart("Power of its GPUs", "W", lines, zone, span=span)


def _build_timeline(submit_s: float, attempts: list[AttemptHistory], now_s: float) -> list[TimelinePart]:
    span_s = max(now_s - submit_s, 1e-3)
    parts: list[TimelinePart] = []
    at_s = submit_s

    def add(from_s: float, to_s: float, kind: str, text: str) -> None:
        x, width = 1000 * (from_s - submit_s) / span_s, 1000 * (to_s - from_s) / span_s
        if width > 0:
            parts.append(TimelinePart(round(x, 2), round(max(width, 2.0), 2), kind, text))

    for attempt in attempts:
        end_s = now_s if attempt.end_s is None else attempt.end_s
        add(at_s, attempt.start_s, "waited", "waited")
        kind = "failed" if attempt.outcome in _BAD else "ran"
        add(attempt.start_s, end_s, kind, f"attempt {attempt.number}: {attempt.outcome or 'running'}")
        at_s = end_s
    add(at_s, now_s, "waited", "waited")
    return parts
