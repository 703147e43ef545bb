"""Reports and tables as plain text for terminals."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence

from wattline import units
from wattline.reports.assumptions import format_assumptions
from wattline.reports.seed_means import Estimate
from wattline.reports.summary import Report

_BAR_WIDTH = 24


def format_report(report: Report) -> str:
    """Return the report as a few aligned lines without colour."""
    r = report
    lines = [
        f"{r.policy}, placed by {r.place}, seed {r.seed}",
        _format_line("cluster", f"{r.cluster}, {r.gpus:,} GPUs"),
        _format_line("trace", r.trace + (f", only team {r.team}" if r.team else "")) if r.trace else "",
        _format_line("jobs", _format_counts(r)),
        _format_line("JCT", _format_percentiles(r, "jct", ("mean", "p50", "p90", "p99", "max"))),
        _format_line("bound", format_bound(r)) if math.isfinite(r.bound_jct_mean_s) or r.bound_none else "",
        _format_line("waiting", _format_percentiles(r, "wait", ("mean", "p50", "p90", "p99"))),
        _format_line("first start", f"mean {format_seconds(r.start_delay_mean_s)} after submission"),
        _format_line(
            "makespan", f"{format_seconds(r.makespan_s)}, offered load {format_percent(r.offered_load)}"
        ),
        _format_line("GPUs held", _format_utilisation(r)),
        _format_line("fragmented", f"{format_percent(r.fragmentation)} of free GPUs while jobs wait"),
        _format_line("stops", f"{r.preemptions:,} preemptions, {r.restarts:,} restarts, {r.losses:,} losses"),
        _format_line("switches", _format_switches(r)) if r.retunes or r.boots else "",
        _format_line("fused", _format_fused(r)) if r.fused_jobs else "",
        _format_line("energy", _format_energy_parts(r)),
        _format_line("", r.energy_method) if math.isfinite(r.energy_j) else "",
        _format_line("deadlines", _format_deadlines(r)) if r.deadline_jobs else "",
        _format_line("cost", _format_cost(r)) if math.isfinite(r.cost) or r.tardiness_cost else "",
        _format_line("optimality", _format_gaps(r)) if math.isfinite(r.gap_mean) or r.gap_unknown else "",
        _format_line("bottleneck", r.bottleneck_text) if r.bottleneck_text else "",
        _format_line("slowdown", _format_slowdown(r)),
        _format_line("estimates", r.estimate_error) if r.estimate_error else "",
        _format_line("assumed", format_assumptions(r.assumptions)) if r.assumptions else "",
    ]
    return "\n".join(line for line in lines if line)


def format_bar(share: float, width: int = _BAR_WIDTH) -> str:
    """Return a bar such as `[######------]` for a share between 0 and 1."""
    full = round(min(1.0, max(0.0, share)) * width) if math.isfinite(share) else 0
    return "[" + "#" * full + "-" * (width - full) + "]"


def format_seconds(value_s: float) -> str:
    """Return a duration with its unit; `-` for nan."""
    return units.format_seconds(value_s) if math.isfinite(value_s) else "-"


def format_percent(share: float) -> str:
    """Return a share as `61.3 %`; `-` for nan."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else "-"


def format_change(ratio: float) -> str:
    """Return a ratio as a change: `−12 %`, `+0.4 %`; `unknown` for nan."""
    if not math.isfinite(ratio):
        return "unknown"
    percent = 100 * (ratio - 1)
    return f"{percent:+.{1 if abs(percent) < 10 else 0}f} %".replace("-", "−")


def format_ratio(ratio: Estimate) -> str:
    """Return a ratio with its interval: `0.82 [0.79, 0.86]`."""
    if not math.isfinite(ratio.value):
        return "-"
    interval = f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.has_interval else ""
    return f"{ratio.value:.2f}{interval}"


def format_spread(estimate: Estimate, format_value: Callable[[float], str]) -> str:
    """Return half of the interval of a mean as `± 3.1 min`; "" without one, or if all seeds agree."""
    return f"± {format_value(estimate.half_width)}" if estimate.half_width > 0 else ""


def format_number(value: float) -> str:
    """Return *value* with three significant digits; `-` for nan."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def format_energy(value_j: float) -> str:
    """Return an energy such as `12.3 kWh` or `4.56 MWh`; `unmetered` for nan."""
    if not math.isfinite(value_j):
        return "unmetered"
    kwh = value_j / 3.6e6
    for limit, unit_kwh, unit in ((1.0, 1e-3, "Wh"), (1e3, 1.0, "kWh"), (1e6, 1e3, "MWh")):
        if abs(kwh) < limit:
            return f"{kwh / unit_kwh:.3g} {unit}"
    return f"{kwh / 1e6:.3g} GWh"


def format_money(value: float) -> str:
    """Return an amount of money to the cent; `-` for nan."""
    return f"{value:,.2f}" if math.isfinite(value) else "-"


def format_bound(r: Report) -> str:
    """Return what no policy can beat, and how far this run is from it; "" for a run without a bound."""
    if not math.isfinite(r.bound_jct_mean_s):
        return f"none: {r.bound_none}" if r.bound_none else ""
    text = f"no policy has a mean JCT below {format_seconds(r.bound_jct_mean_s)}"
    if math.isfinite(r.gap_to_bound):
        text += f", this one is {format_percent(r.gap_to_bound)} above"
    return f"{text}; none uses less than {format_energy(r.bound_energy_j)}"


def _format_line(name: str, text: str) -> str:
    """Return one entry of a report, wrapped to 80 columns."""
    first, rest = f"  {name:<12}", " " * 14
    wrapped = textwrap.wrap(
        text, 80, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(wrapped) or first.rstrip()


def _format_counts(r: Report) -> str:
    text = f"{r.jobs:,} arrived, {r.finished:,} finished, {r.failed:,} failed"
    if r.unfinished:
        text += f", {r.unfinished:,} unfinished ({r.never_started:,} never started)"
    return text


def _format_percentiles(r: Report, name: str, keys: Sequence[str]) -> str:
    return " ".join(f"{key} {format_seconds(getattr(r, f'{name}_{key}_s'))}," for key in keys).rstrip(",")


def _format_energy_parts(r: Report) -> str:
    if not math.isfinite(r.energy_j):
        return r.energy_method
    known = [
        f"{name} {format_percent(part_j / r.energy_j)}" for name, part_j in list_energy_parts(r) if r.energy_j
    ]
    return f"{format_energy(r.energy_j)}: {', '.join(known)}" if known else format_energy(r.energy_j)


def list_energy_parts(r: Report) -> list[tuple[str, float]]:
    """Return the known parts of the energy in joules; boots and switched-off nodes only where above 0."""
    parts = (
        ("held GPUs", r.energy_lease_j),
        ("idle GPUs", r.energy_idle_gpu_j),
        ("nodes", r.energy_base_j),
        ("boots", r.energy_boot_j or math.nan),
        ("nodes off", r.energy_off_j or math.nan),
    )
    return [(name, part_j) for name, part_j in parts if math.isfinite(part_j)]


def _format_switches(r: Report) -> str:
    return f"{r.retunes:,} caps changed, {r.boots:,} nodes switched on"


def _format_fused(r: Report) -> str:
    return f"{r.fused_jobs:,} jobs, in arrays of {format_number(r.array_width_mean)} on average"


def _format_deadlines(r: Report) -> str:
    missed = f"{r.deadline_misses:,} of {r.deadline_jobs:,} missed"
    return f"{missed}, late by {format_seconds(r.tardiness_mean_s)} on average"


def _format_cost(r: Report) -> str:
    late = f"{format_money(r.tardiness_cost)} for being late"
    if not math.isfinite(r.cost):
        return f"{late}, and energy, of which no price was given"
    return f"{format_money(r.cost)}: {format_money(r.energy_cost)} for energy at {r.price}, {late}"


def _format_gaps(r: Report) -> str:
    known = f"at most {100 * r.gap_max:.3g} % from the best decision, {100 * r.gap_mean:.2g} % on average"
    if not r.gap_unknown:
        return known
    unknown = f"{r.gap_unknown:,} decisions without a known optimality gap"
    return f"{known}; {unknown}" if math.isfinite(r.gap_mean) else unknown


def _format_utilisation(r: Report) -> str:
    share = f"{format_bar(r.gpu_utilisation)} {format_percent(r.gpu_utilisation)}"
    return f"{share}, {format_number(r.gpu_hours)} GPU-hours"


def _format_slowdown(r: Report) -> str:
    mean, p99, longest = map(format_number, (r.ftf_mean, r.ftf_p99, r.ftf_max))
    return f"JCT / run time: mean {mean}, p99 {p99}, max {longest}"
