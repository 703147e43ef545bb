"""What a setting does to a job, as people read it, and how far that can be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from wattline.cli.models.workload_data import assumed
from wattline.cli.models.workload_text import percent
from wattline.grid import grid
from wattline.models.workload import Workload


class Outcome(NamedTuple):
    """Of all GPUs of a job together; nan: nobody can tell."""

    samples_s: float
    watts: float

    @property
    def joules_per_sample(self) -> float:
        """Energy of one sample."""
        return self.watts / self.samples_s


def outcome_text(w: Workload, knobs: Mapping[str, Any], asked: Outcome, free: Outcome) -> str:
    """What was *asked* for, beside the same job *free* of cap and clock, and what it rests on."""
    rows = [
        ("samples/s", _number(asked.samples_s, ""), _number(free.samples_s, "")),
        ("watts of the GPUs", _number(asked.watts, " W"), _number(free.watts, " W")),
        ("energy of a sample", _joules(asked.joules_per_sample), _joules(free.joules_per_sample)),
    ]
    held = knobs["cap_w"] is not None or knobs["clock_mhz"] is not None
    shown = [("", "as set", "not held back"), *rows] if held else [row[:2] for row in rows]
    lines = [*grid(shown, lambda column: "<>>"[column]), *([_gain(asked, free)] if held else [])]
    return "\n".join(
        [f"{w.model} on {w.gpu}: {_settings(knobs)}", *(f"  {x}" for x in lines + _trust(w, knobs))]
    )


def relied_on(w: Workload, knobs: Mapping[str, Any]) -> dict[str, str]:
    """Of what is assumed of *w*, that which a prediction at *knobs* rests on."""
    several = knobs["gpus"] > 1
    uses = {
        "gpus": several,
        "nodes": knobs["nodes"] > 1,
        "watts": True,
        "cap_w": knobs["cap_w"] is not None,
        "clock_mhz": knobs["clock_mhz"] is not None,
        "wait": several,
        "demand": knobs["cpus"] is not None or knobs["mem_gib"] is not None,
        "array": knobs["fuse"] > 1,
    }
    return {part: text for part, text in assumed(w).items() if uses.get(part)}


_WHAT = {
    "gpus": "several GPUs were",
    "nodes": "several nodes were",
    "watts": "watts were",
    "cap_w": "caps were",
    "clock_mhz": "clocks were",
    "wait": "watts of waiting GPUs were",
    "demand": "cores and memory were",
    "array": "arrays were",
}


def _trust(w: Workload, knobs: Mapping[str, Any]) -> list[str]:
    lines = ["watts were measured for this workload"] if w.metered else []
    lines += [f"{_WHAT[part]} not measured: assumed {text}" for part, text in relied_on(w, knobs).items()]
    errors = (("samples/s", w.source.samples_error), ("watts", w.source.watts_error))
    off = ", ".join(f"{name} {percent(error)} off" for name, error in errors if math.isfinite(error))
    points = f"{w.source.points} points" if w.source.points != 1 else "1 point"
    source = f" of {w.source.name}" if w.source.name else ""
    lines.append(f"fitted to {points}{source}; held out: {f'{off} on average' if off else 'nothing'}")
    return lines


def _gain(asked: Outcome, free: Outcome) -> str:
    slower = free.samples_s / asked.samples_s - 1.0
    saved = 1.0 - asked.joules_per_sample / free.joules_per_sample
    if math.isnan(saved):
        return f"takes {percent(abs(slower))} longer"
    energy = f"saves {percent(saved)} of" if saved >= 0 else f"adds {percent(-saved)} to"
    return f"takes {percent(abs(slower))} longer, {energy} the energy of the GPUs"


def _settings(knobs: Mapping[str, Any]) -> str:
    gpus, nodes, fuse = knobs["gpus"], knobs["nodes"], knobs["fuse"]
    words = [f"{gpus} GPU{'s' if gpus > 1 else ''} on {nodes} node{'s' if nodes > 1 else ''}"]
    for name, text in _SETTINGS.items():
        if knobs[name] is not None:
            words.append(text.format(knobs[name]))
    return ", ".join([*words, *([f"{fuse} jobs as one array"] if fuse > 1 else [])])


_SETTINGS = {
    "batch": "batch {:g}",
    "cap_w": "cap {:g} W",
    "clock_mhz": "clock {:g} MHz",
    "cpus": "{:g} cores",
    "mem_gib": "{:g} GiB",
    "read_mib_s": "{:g} MiB/s",
}


def _number(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "unknown"
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}") + unit


def _joules(value_j: float) -> str:
    return _number(1000 * value_j, " mJ") if value_j < 1.0 else _number(value_j, " J")
