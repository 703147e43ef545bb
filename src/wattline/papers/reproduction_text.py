"""Figures of reproductions as text: cells of the table and of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wattline.papers.results import CaseResult, PaperResult, Sample

COLUMNS = ("case", "original", "ours", "loses", "data")
SUMMARY_COLUMNS = ("paper", "claim", "original", "ours", "data")


def format_sample(sample: Sample | None, unit: str) -> str:
    """Return the mean and the range over the seeds: `74.8 % (72.6..76.0)`."""
    if sample is None:
        return "-"
    text = f"{_format(sample.mean, unit)}{unit}"
    if len(sample.values) < 2:
        return text
    low, high = (_format(value, unit) for value in sample.range)
    return text if low == high else f"{text} ({low}..{high})"


def _format(value: float, unit: str) -> str:
    return f"{value:.1f}" if unit == " %" else f"{value:.2f}"


def format_losses(case: CaseResult) -> str:
    """Return in how many seeds ours is worse, as in `2/5`."""
    return f"{case.losses}/{len(case.ours.values)}"


def list_rows(one: PaperResult) -> list[tuple[str, ...]]:
    """Return the rows of an experiment, of `COLUMNS`."""
    return [
        (
            case.case,
            format_sample(case.original, one.unit),
            format_sample(case.ours, one.unit),
            format_losses(case),
            case.data,
        )
        for case in one.cases
    ]


def list_summary(found: Sequence[PaperResult]) -> list[tuple[str, ...]]:
    """Return a row of each experiment, of `SUMMARY_COLUMNS`: means of its cases, least and most."""
    return [
        (
            one.name,
            one.claim.partition(",")[0].partition(":")[0],
            _format_means([case.original for case in one.cases], one.unit),
            _format_means([case.ours for case in one.cases], one.unit) if not one.left_out else "left out",
            one.data or "-",
        )
        for one in found
    ]


def _format_means(samples: Sequence[Sample | None], unit: str) -> str:
    means = [sample.mean for sample in samples if sample is not None and math.isfinite(sample.mean)]
    if not means:
        return "-"
    low, high = (_format(value, unit) for value in (min(means), max(means)))
    return f"{low} to {high}{unit}" if low != high else f"{low}{unit}"


def list_step_rows(one: PaperResult) -> list[tuple[str, ...]]:
    """Return the rows of the ablation: mean and 95 % interval of JCT, energy and cost of every step."""
    rows = []
    for step in one.extra["steps"]:
        cells = []
        for name, scale, digits in (("jct_mean_h", 1.0, 1), ("energy_kwh", 1e-3, 2), ("cost", 1.0, 0)):
            mean, low, high = (scale * value for value in (step[name]["mean"], *step[name]["interval"]))
            cells.append(f"{mean:,.{digits}f} ({low:,.{digits}f}..{high:,.{digits}f})")
        rows.append((step["lever"], *cells, f"{100 * step['deadlines_missed']['mean']:.0f} %"))
    return rows


STEP_COLUMNS = ("step", "mean JCT h", "energy MWh", "cost", "late")
EFFECT_COLUMNS = ("lever", "metric", "gain on top", "gain alone", "so it")


def list_effect_rows(one: PaperResult) -> list[tuple[str, ...]]:
    """Return what each lever gains on top of those before it and alone, with 95 % intervals."""
    rows = []
    for effect in one.extra["effects"]:
        for metric, found in effect.items():
            if metric != "lever":
                gains = [
                    _format_interval(found[key], found[f"{key}_interval"]) for key in ("on_top", "alone")
                ]
                rows.append((effect["lever"].removeprefix("+ "), metric, *gains, found["effect"]))
    return rows


def _format_interval(mean: float, interval: Sequence[float]) -> str:
    return f"{mean:.2f}x ({interval[0]:.2f}..{interval[1]:.2f})"
