"""Text of a fitted workload, part by part."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from wattline.cli.models.workload_data import list_assumptions
from wattline.cli.output import format_columns
from wattline.models.power.curves import Curves
from wattline.models.workload import Workload
from wattline.units import pluralize

_UNITS = {"cap_w": " W", "clock_mhz": " MHz", "mem_gib": " GiB", "read_mib_s": " MiB/s"}
_LINE = 100  # characters
_PER_GPU = frozenset(("batch", "cpus", "mem_gib", "read_mib_s"))
_NAMES = {"gpus": "GPUs", "cap_w": "cap", "clock_mhz": "clock", "mem_gib": "memory", "read_mib_s": "storage"}


def format_percent(share: float) -> str:
    """Return `4.2 %`, or `-` for nan."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else "-"


def format_ranges(w: Workload) -> str:
    """Return the measured range of each setting: `batch 8 to 64 per GPU, cap 100 to 300 W`."""
    ranges = (
        f"{_NAMES.get(name, name)} {least:g} to {most:g}{_UNITS.get(name, '')}"
        + (" per GPU" if name in _PER_GPU else "")
        for name, (least, most) in w.measured.items()
    )
    return ", ".join(ranges) or "nothing"


def format_workload(w: Workload, held_out: str, laws: Sequence[object] = ()) -> str:
    """Return the lines about *w*; *held_out* describes its errors at points held out, *laws* its laws."""
    source = f" ({w.source.name})" if w.source.name else ""
    lines = [f"{w.model} on {w.gpu}{source}: {pluralize(w.source.points, 'point')}"]
    parts = (
        ("held out", [held_out]),
        ("varied", [format_ranges(w)]),
        ("speed", _describe_speed(w)),
        ("watts", _describe_watts(w)),
        ("cap", _describe_laws(w, "cap_w", w.throttle.caps)),
        ("clock", _describe_laws(w, "clock_mhz", w.throttle.clocks)),
        ("law", list(map(str, laws)) or _describe_misfits(w)),
        (
            "waiting",
            _unless_assumed(
                w, "wait", [f"a GPU that waits draws {100 * w.waiting_power:.0f} % of one that computes"]
            ),
        ),
        ("demand", _unless_assumed(w, "demand", _describe_demand(w))),
        ("array", [*_unless_assumed(w, "array", [_describe_array(w)]), *_describe_memory(w)]),
    )
    for name, texts in parts:
        lines += [f"  {name if i == 0 else '':<10}{line}" for i, line in enumerate(texts)]
    return "\n".join(lines)


def _unless_assumed(w: Workload, part: str, measured: list[str]) -> list[str]:
    assumptions = list_assumptions(w)
    return [f"not measured: assumed {assumptions[part]}"] if part in assumptions else measured


def _describe_speed(w: Workload) -> list[str]:
    s, assumptions = w.speed, list_assumptions(w)
    computing = [(s.fixed_s, ""), (s.sample_s, " per sample"), (s.root_s, " per root of samples")]
    waits = [
        (s.second_gpu_s, " for a second GPU"),
        (s.more_gpus_s, " for each further one on a node"),
        (s.second_node_s, " for a second node"),
        (s.more_nodes_s, " for each further one"),
    ]
    lines = [f"a step computes {_format_sum(computing)}"]
    if "gpus" not in assumptions or "nodes" not in assumptions:
        lines.append(f"and synchronises {_format_sum(waits)}")
    lines += [
        f"{_NAMES.get(k, k)} not measured: assumed {assumptions[k]}"
        for k in ("batch", "gpus", "nodes")
        if k in assumptions
    ]
    return lines


def _format_sum(terms: Sequence[tuple[float, str]]) -> str:
    return " + ".join(_format_seconds(value_s) + what for value_s, what in terms if value_s > 0) or "0 ms"


def _format_seconds(value_s: float) -> str:
    for unit_s, unit in ((1.0, "s"), (1e-3, "ms")):
        if value_s >= unit_s:
            return f"{value_s / unit_s:.3g} {unit}"
    return f"{value_s / 1e-6:.3g} µs"


def _describe_watts(w: Workload) -> list[str]:
    if not w.metered:
        return _unless_assumed(w, "watts", [])
    known = zip(w.throttle.batch.tolist(), w.throttle.top_w.tolist(), strict=True)
    of_batch = ", ".join(f"{v:.4g} W at batch {b:g}" for b, v in known)
    return textwrap.wrap(f"an unlimited GPU draws {of_batch}", _LINE)


def _describe_laws(w: Workload, knob: str, curves: Curves | None) -> list[str]:
    """Return a table of the coefficients of the laws, a line per batch size of a GPU."""
    if curves is None:
        return _unless_assumed(w, knob, [])
    metered = curves.metered
    rate_names, watts_names = curves.names
    columns = ["batch", "bend", *(f"rate {name}" for name in rate_names)]
    columns += [f"watts {name}" for name in watts_names] if metered else ["watts"]
    rows = []
    for row, batch in enumerate(curves.batch.tolist()):
        draws = [_format_number(v) for v in curves.watts_law[row].tolist()] if metered else ["not measured"]
        rate = (_format_number(v) for v in [float(curves.bend[row]), *curves.rate_law[row].tolist()])
        rows.append([f"{batch:g}", *rate, *draws])
    return format_columns(columns, rows, right=columns)


def _describe_misfits(w: Workload) -> list[str]:
    names = (_NAMES[knob] for knob in w.source.misfits)
    return [f"the {name} law does not fit: choose a measured {name}" for name in names]


def _format_number(value: float) -> str:
    return f"{value:.4g}"


def _describe_demand(w: Workload) -> list[str]:
    d = w.demand
    lines = []
    if d.fixed_s or d.core_s:
        lines.append(
            f"a sample is prepared in {_format_sum([(d.fixed_s, ''), (d.core_s, ' / cores of a GPU')])}"
        )
    if d.storage_s:
        of = f"a data set of {d.dataset_gib:.4g} GiB" if math.isfinite(d.dataset_gib) else "a data set"
        lines.append(
            f"and read from storage in {_format_seconds(d.storage_s)} where memory does not hold it, of {of}"
        )
    if d.starved_s:
        lines.append(
            f"below {d.least_gib:.4g} GiB for each GPU a sample takes {_format_seconds(d.starved_s)}"
        )
    return lines or ["cores and memory never held it back"]


def _describe_array(w: Workload) -> str:
    return f"each further job of an array adds {100 * w.array.serial:.1f} % of a step"


def _describe_memory(w: Workload) -> list[str]:
    if math.isnan(w.array.member_gib):
        return ["memory not measured: how many fit on a GPU is unknown"]
    return [f"memory of a GPU: {w.array.shared_gib:.3g} GiB + {w.array.member_gib:.3g} GiB for each job"]
