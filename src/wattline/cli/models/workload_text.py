"""What is known of a fitted workload, part by part, as people read it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from wattline.cli.models.workload_data import assumed
from wattline.grid import grid
from wattline.models.power.curves import Curves
from wattline.models.workload import Workload

_UNITS = {"cap_w": " W", "clock_mhz": " MHz", "mem_gib": " GiB", "read_mib_s": " MiB/s"}
_WIDE = 100  # letters of a line
_PER_GPU = frozenset(("batch", "cpus", "mem_gib", "read_mib_s"))
_NAMES = {"gpus": "GPUs", "cap_w": "cap", "clock_mhz": "clock", "mem_gib": "memory", "read_mib_s": "storage"}


def percent(share: float) -> str:
    """`4.2 %`, or `-` where nobody knows."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else "-"


def varied(w: Workload) -> str:
    """Which knobs were varied, and how far: `batch 8 to 64 per GPU, cap 100 to 300 W`."""
    ranges = (
        f"{_NAMES.get(name, name)} {least:g} to {most:g}{_UNITS.get(name, '')}"
        + (" per GPU" if name in _PER_GPU else "")
        for name, (least, most) in w.measured.items()
    )
    return ", ".join(ranges) or "nothing"


def workload_text(w: Workload, held_out: str) -> str:
    """A block of lines about *w*; *held_out* says how far off it was."""
    source = f" ({w.source.name})" if w.source.name else ""
    lines = [f"{w.model} on {w.gpu}{source}: {w.source.points} points"]
    parts = (
        ("held out", [held_out]),
        ("varied", [varied(w)]),
        ("speed", _speed(w)),
        ("watts", _watts(w)),
        ("cap", _laws(w, "cap_w", w.throttle.caps)),
        ("clock", _laws(w, "clock_mhz", w.throttle.clocks)),
        (
            "waiting",
            _or_assumed(w, "wait", [f"a GPU that waits draws {100 * w.wait:.0f} % of one that computes"]),
        ),
        ("demand", _or_assumed(w, "demand", _demand(w))),
        ("array", [*_or_assumed(w, "array", [_array(w)]), *_memory(w)]),
    )
    for name, said in parts:
        lines += [f"  {name if i == 0 else '':<10}{line}" for i, line in enumerate(said)]
    return "\n".join(lines)


def _or_assumed(w: Workload, part: str, said: list[str]) -> list[str]:
    taken = assumed(w)
    return [f"not measured: assumed {taken[part]}"] if part in taken else said


def _speed(w: Workload) -> list[str]:
    s, taken = w.speed, assumed(w)
    computing = [(s.fixed_s, ""), (s.sample_s, " per sample"), (s.root_s, " per root of samples")]
    waits = [
        (s.second_gpu_s, " for a second GPU"),
        (s.more_gpus_s, " for each further one on a node"),
        (s.second_node_s, " for a second node"),
        (s.more_nodes_s, " for each further one"),
    ]
    lines = [f"a step computes {_sum(computing)}"]
    if "gpus" not in taken or "nodes" not in taken:
        lines.append(f"and synchronises {_sum(waits)}")
    lines += [
        f"{_NAMES.get(k, k)} not measured: assumed {taken[k]}"
        for k in ("batch", "gpus", "nodes")
        if k in taken
    ]
    return lines


def _sum(terms: Sequence[tuple[float, str]]) -> str:
    return " + ".join(_seconds(value_s) + what for value_s, what in terms if value_s > 0) or "0 ms"


def _seconds(value_s: float) -> str:
    for unit_s, unit in ((1.0, "s"), (1e-3, "ms")):
        if value_s >= unit_s:
            return f"{value_s / unit_s:.3g} {unit}"
    return f"{value_s / 1e-6:.3g} µs"


def _watts(w: Workload) -> list[str]:
    if not w.metered:
        return _or_assumed(w, "watts", [])
    known = zip(w.throttle.batch.tolist(), w.throttle.top_w.tolist(), strict=True)
    of_batch = ", ".join(f"{v:.4g} W at batch {b:g}" for b, v in known)
    return textwrap.wrap(f"a GPU that nothing holds back draws {of_batch}", _WIDE)


def _laws(w: Workload, knob: str, curves: Curves | None) -> list[str]:
    """The coefficients of the laws, a line per local batch size."""
    if curves is None:
        return _or_assumed(w, knob, [])
    metered = curves.metered
    rate_names, watts_names = curves.names
    head = ["batch", "bend", *(f"rate {name}" for name in rate_names)]
    head += [f"watts {name}" for name in watts_names] if metered else ["watts"]
    rows = [head]
    for row, batch in enumerate(curves.batch.tolist()):
        draws = [_number(v) for v in curves.watts_law[row].tolist()] if metered else ["not measured"]
        rate = (_number(v) for v in [float(curves.bend[row]), *curves.rate_law[row].tolist()])
        rows.append([f"{batch:g}", *rate, *draws])
    return grid(rows, lambda column: ">")


def _number(value: float) -> str:
    return f"{value:.4g}"


def _demand(w: Workload) -> list[str]:
    d = w.demand
    lines = []
    if d.fixed_s or d.core_s:
        lines.append(f"a sample is prepared in {_sum([(d.fixed_s, ''), (d.core_s, ' / cores of a GPU')])}")
    if d.storage_s:
        of = f"a data set of {d.dataset_gib:.4g} GiB" if math.isfinite(d.dataset_gib) else "a data set"
        lines.append(
            f"and read from storage in {_seconds(d.storage_s)} where memory does not hold it, of {of}"
        )
    if d.starved_s:
        lines.append(f"below {d.least_gib:.4g} GiB for each GPU a sample takes {_seconds(d.starved_s)}")
    return lines or ["cores and memory never held it back"]


def _array(w: Workload) -> str:
    return f"each further job of an array adds {100 * w.array.serial:.1f} % of a step"


def _memory(w: Workload) -> list[str]:
    if math.isnan(w.array.member_gib):
        return ["memory not measured: how many fit on a GPU is unknown"]
    return [f"memory of a GPU: {w.array.shared_gib:.3g} GiB + {w.array.member_gib:.3g} GiB for each job"]
