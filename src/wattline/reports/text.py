"""A report as people read it in a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wattline.reports.summary import Report
from wattline.units import show_seconds

_BAR = 24


def block(report: Report) -> str:
    """The report as a few aligned lines; no colour, no line longer than it must be."""
    r = report
    lines = [
        f"{r.policy}, placed by {r.place}, seed {r.seed}",
        _line("cluster", f"{r.cluster}, {r.gpus:,} GPUs" + (f"; trace {r.trace}" if r.trace else "")),
        _line("jobs", _counts(r)),
        _line("JCT", _spread(r, "jct", ("mean", "p50", "p90", "p99", "max"))),
        _line("waiting", _spread(r, "wait", ("mean", "p50", "p90", "p99"))),
        _line("first start", f"mean {seconds(r.start_delay_mean_s)} after submission"),
        _line("makespan", f"{seconds(r.makespan_s)}, offered load {percent(r.offered_load)}"),
        _line("GPUs held", _held(r)),
        _line("fragmented", f"{percent(r.fragmentation)} of free GPUs while jobs wait"),
        _line("stops", f"{r.preemptions:,} preemptions, {r.restarts:,} restarts, {r.losses:,} losses"),
        _line("switches", _switches(r)) if r.retunes or r.boots else "",
        _line("fused", _fused(r)) if r.fused_jobs else "",
        _line("energy", _energy(r)),
        _line("", r.energy_method) if math.isfinite(r.energy_j) else "",
        _line("deadlines", _deadlines(r)) if r.deadline_jobs else "",
        _line("cost", _cost(r)) if math.isfinite(r.cost) or r.tardiness_cost else "",
        _line("optimality", _gaps(r)) if math.isfinite(r.gap_mean) or r.gap_unknown else "",
        _line("slowdown", _slowdown(r)),
    ]
    return "\n".join(line for line in lines if line)


def bar(share: float, width: int = _BAR) -> str:
    """`[######------]` for a share of one."""
    full = round(min(1.0, max(0.0, share)) * width) if math.isfinite(share) else 0
    return "[" + "#" * full + "-" * (width - full) + "]"


def seconds(value_s: float) -> str:
    """A duration, or `-` where there is none."""
    return show_seconds(value_s) if math.isfinite(value_s) else "-"


def percent(share: float) -> str:
    """`61.3 %`, or `-`."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else "-"


def number(value: float) -> str:
    """Three digits, or `-`."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def joules(value_j: float) -> str:
    """An energy in the unit of bills: `12.3 kWh`, `4.56 MWh`; `unmetered` where nobody read it."""
    if not math.isfinite(value_j):
        return "unmetered"
    kwh = value_j / 3.6e6
    for limit, unit_kwh, unit in ((1.0, 1e-3, "Wh"), (1e3, 1.0, "kWh"), (1e6, 1e3, "MWh")):
        if abs(kwh) < limit:
            return f"{kwh / unit_kwh:.3g} {unit}"
    return f"{kwh / 1e6:.3g} GWh"


def money(value: float) -> str:
    """Money to the cent, or `-`."""
    return f"{value:,.2f}" if math.isfinite(value) else "-"


def _line(name: str, text: str) -> str:
    return f"  {name:<12}{text}"


def _counts(r: Report) -> str:
    text = f"{r.jobs:,} arrived, {r.finished:,} finished, {r.failed:,} failed"
    if r.unfinished:
        text += f", {r.unfinished:,} unfinished ({r.never_started:,} never started)"
    return text


def _spread(r: Report, name: str, keys: Sequence[str]) -> str:
    return "   ".join(f"{key} {seconds(getattr(r, f'{name}_{key}_s')):<8}" for key in keys).rstrip()


def _energy(r: Report) -> str:
    if not math.isfinite(r.energy_j):
        return r.energy_method
    known = [f"{name} {percent(part_j / r.energy_j)}" for name, part_j in energy_parts(r) if r.energy_j]
    return f"{joules(r.energy_j)}: {', '.join(known)}" if known else joules(r.energy_j)


def energy_parts(r: Report) -> list[tuple[str, float]]:
    """What the joules were spent on, as far as known; boots and nodes that are off if there were any."""
    parts = (
        ("held GPUs", r.energy_lease_j),
        ("idle GPUs", r.energy_idle_gpu_j),
        ("nodes", r.energy_base_j),
        ("boots", r.energy_boot_j or math.nan),
        ("nodes off", r.energy_off_j or math.nan),
    )
    return [(name, part_j) for name, part_j in parts if math.isfinite(part_j)]


def _switches(r: Report) -> str:
    return f"{r.retunes:,} caps changed, {r.boots:,} nodes switched on"


def _fused(r: Report) -> str:
    return f"{r.fused_jobs:,} jobs, in arrays of {number(r.array_width_mean)} on average"


def _deadlines(r: Report) -> str:
    missed = f"{r.deadline_misses:,} of {r.deadline_jobs:,} missed"
    return f"{missed}, late by {seconds(r.tardiness_mean_s)} on average"


def _cost(r: Report) -> str:
    """Money, to the cent."""
    late = f"{money(r.tardiness_cost)} for being late"
    if not math.isfinite(r.cost):
        return f"{late}, and energy, of which no price was given"
    return f"{money(r.cost)}: {money(r.energy_cost)} for energy at {r.price}, {late}"


def _gaps(r: Report) -> str:
    """How far from the best decisions may be."""
    known = f"at most {100 * r.gap_max:.3g} % from the best decision, {100 * r.gap_mean:.2g} % on average"
    if not r.gap_unknown:
        return known
    unknown = f"{r.gap_unknown:,} decisions of which nobody knows how good they are"
    return f"{known}; {unknown}" if math.isfinite(r.gap_mean) else unknown


def _held(r: Report) -> str:
    return f"{bar(r.gpu_utilisation)} {percent(r.gpu_utilisation)}, {number(r.gpu_hours)} GPU-hours"


def _slowdown(r: Report) -> str:
    """Finish-time fairness, by the name that says what it is."""
    return f"JCT / run time: mean {number(r.ftf_mean)}, p99 {number(r.ftf_p99)}, max {number(r.ftf_max)}"
