"""The result of runs in plain sentences, for the top of a page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wattline.reports.compare import Comparison
from wattline.reports.run_names import name_runs
from wattline.reports.seed_means import Estimate
from wattline.reports.summary import Report
from wattline.reports.text import (
    format_change,
    format_energy,
    format_percent,
    format_seconds,
    format_spread,
)


def summarize(comparison: Comparison) -> list[str]:
    """Return sentences about one run, or about the best of several against the first."""
    reports = comparison.reports
    single = len(reports) == 1 and comparison.seed_runs is None
    return _summarize_run(reports[0]) if single else _summarize_runs(comparison)


def _summarize_run(r: Report) -> list[str]:
    sentences = [
        f"{r.policy} finished {r.finished:,} of {r.jobs:,} jobs on {r.gpus:,} GPUs"
        f" in {format_seconds(r.makespan_s)}."
    ]
    if math.isfinite(r.jct_mean_s):
        sentences.append(
            f"From its submission to its end a job took {format_seconds(r.jct_mean_s)} on average,"
            f" {format_seconds(r.wait_mean_s)} of it waiting."
        )
    energy = f"{format_energy(r.energy_j)} ({r.energy_method})" if math.isfinite(r.energy_j) else "unmetered"
    sentences.append(f"Energy: {energy}; {format_percent(r.gpu_utilisation)} of the GPU time was used.")
    if r.bottleneck_text:
        sentences.append(f"By its prices {r.bottleneck_text}.")
    return sentences


def _summarize_runs(comparison: Comparison) -> list[str]:
    reports, names = comparison.shown_reports, name_runs(comparison.reports)
    base, seeds = names[0], comparison.seed_runs
    sentences = [f"{len(reports)} runs, each compared with {base}."]
    if seeds is not None:
        count = len(seeds.seeds)
        policies = (
            "One policy" if len(reports) == 1 else f"{len(reports)} policies, each compared with {base}"
        )
        sentences = [
            f"{policies}, simulated with {count} seeds: figures are means over"
            f" the seeds, with their 95 % intervals."
        ]
        if len(reports) == 1:
            return [*sentences, *_summarize_means(comparison)]
    for field, text in (("energy_j", "Least energy"), ("jct_mean_s", "Shortest mean JCT")):
        best = _find_least([getattr(r, field) for r in reports])
        if best is None:
            continue
        energy, jct = (
            _format_estimated_change(comparison.estimate_ratios(name)[best])
            for name in ("energy_j", "jct_mean_s")
        )
        what = "the base itself" if best == 0 else f"energy {energy}, mean JCT {jct}"
        sentences.append(f"{text}: {names[best]} ({what}).")
    unfinished = [name for name, r in zip(names, reports, strict=True) if r.unfinished]
    if unfinished:
        sentences.append(f"Not every job finished under {', '.join(unfinished)}: their means say less.")
    if comparison.differing_inputs:
        sentences.append(f"Beware: these runs differ in {', '.join(comparison.differing_inputs)}.")
    return sentences


def _summarize_means(comparison: Comparison) -> list[str]:
    """Return a sentence about the means of the only policy."""
    parts = [
        f"{title} {format_value(value.value)} {format_spread(value, format_value)}"
        for title, name, format_value in (
            ("mean JCT", "jct_mean_s", format_seconds),
            ("energy", "energy_j", format_energy),
        )
        if math.isfinite((value := comparison.estimate(name)[0]).value)
    ]
    return [f"{name_runs(comparison.reports)[0]}: {', '.join(parts)}."] if parts else []


def _format_estimated_change(ratio: Estimate) -> str:
    """Return a ratio as a change, with its interval: `−12 % (−15 % to −9.1 %)`."""
    text = format_change(ratio.value)
    return (
        f"{text} ({format_change(ratio.low)} to {format_change(ratio.high)})" if ratio.has_interval else text
    )


def _find_least(values: Sequence[float]) -> int | None:
    known = [(value, number) for number, value in enumerate(values) if math.isfinite(value)]
    return min(known)[1] if known else None
