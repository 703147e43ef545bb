"""Text of a prediction, and of what it rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from wattline.cli.models.workload_data import list_assumptions
from wattline.cli.models.workload_text import format_percent
from wattline.cli.output import format_columns
from wattline.models.workload import Workload
from wattline.units import pluralize


class PredictedOutcome(NamedTuple):
    """Speed and power of all GPUs of a job together; nan: unknown."""

    samples_s: float
    watts: float

    @property
    def joules_per_sample(self) -> float:
        """Energy of one sample."""
        return self.watts / self.samples_s


def format_prediction(
    w: Workload, settings: Mapping[str, Any], limited: PredictedOutcome, unlimited: PredictedOutcome
) -> str:
    """Return the prediction at *settings*, beside the same job without cap and clock, and its basis."""
    rows = [
        ("samples/s", _format_number(limited.samples_s, ""), _format_number(unlimited.samples_s, "")),
        ("watts of the GPUs", _format_number(limited.watts, " W"), _format_number(unlimited.watts, " W")),
        (
            "energy of a sample",
            _format_joules(limited.joules_per_sample),
            _format_joules(unlimited.joules_per_sample),
        ),
    ]
    if settings["cap_w"] is None and settings["clock_mhz"] is None:
        lines = format_columns(("", "as set"), [row[:2] for row in rows], right=("as set",))[1:]  # no header
    else:
        columns = ("", "as set", "unlimited")
        lines = [*format_columns(columns, rows, right=columns[1:]), _describe_saving(limited, unlimited)]
    lines += _describe_basis(w, settings)
    return "\n".join([f"{w.model} on {w.gpu}: {_format_settings(settings)}", *(f"  {x}" for x in lines)])


def list_used_assumptions(w: Workload, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return those of the assumptions about *w* that a prediction at *settings* rests on."""
    several = settings["gpus"] > 1
    uses = {
        "gpus": several,
        "nodes": settings["nodes"] > 1,
        "watts": True,
        "cap_w": settings["cap_w"] is not None,
        "clock_mhz": settings["clock_mhz"] is not None,
        "wait": several,
        "demand": settings["cpus"] is not None or settings["mem_gib"] is not None,
        "array": settings["fuse"] > 1,
    }
    return {part: text for part, text in list_assumptions(w).items() if uses.get(part)}


_SUBJECTS = {
    "gpus": "several GPUs were",
    "nodes": "several nodes were",
    "watts": "watts were",
    "cap_w": "caps were",
    "clock_mhz": "clocks were",
    "wait": "watts of waiting GPUs were",
    "demand": "cores and memory were",
    "array": "arrays were",
}


def _describe_basis(w: Workload, settings: Mapping[str, Any]) -> list[str]:
    lines = ["watts were measured for this workload"] if w.metered else []
    lines += [
        f"{_SUBJECTS[part]} not measured: assumed {text}"
        for part, text in list_used_assumptions(w, settings).items()
    ]
    lines += [
        f"the {name} law does not fit the measurements: trust measured {name}s only"
        for knob, name in (("cap_w", "cap"), ("clock_mhz", "clock"))
        if settings[knob] is not None and knob in w.source.misfits
    ]
    errors = (("samples/s", w.source.samples_error), ("watts", w.source.watts_error))
    off = ", ".join(f"{name} {format_percent(error)} off" for name, error in errors if math.isfinite(error))
    points = pluralize(w.source.points, "point")
    source = f" of {w.source.name}" if w.source.name else ""
    lines.append(f"fitted to {points}{source}; held out: {f'{off} on average' if off else 'nothing'}")
    return lines


def _describe_saving(limited: PredictedOutcome, unlimited: PredictedOutcome) -> str:
    slower = unlimited.samples_s / limited.samples_s - 1.0
    saved = 1.0 - limited.joules_per_sample / unlimited.joules_per_sample
    if math.isnan(saved):
        return f"takes {format_percent(abs(slower))} longer"
    energy = f"saves {format_percent(saved)} of" if saved >= 0 else f"adds {format_percent(-saved)} to"
    return f"takes {format_percent(abs(slower))} longer, {energy} the energy of the GPUs"


def _format_settings(settings: Mapping[str, Any]) -> str:
    gpus, nodes, fuse = settings["gpus"], settings["nodes"], settings["fuse"]
    parts = [f"{gpus} GPU{'s' if gpus > 1 else ''} on {nodes} node{'s' if nodes > 1 else ''}"]
    for name, text in _SETTING_TEXTS.items():
        if settings[name] is not None:
            parts.append(text.format(settings[name]))
    return ", ".join([*parts, *([f"{fuse} jobs as one array"] if fuse > 1 else [])])


_SETTING_TEXTS = {
    "batch": "batch {:g}",
    "cap_w": "cap {:g} W",
    "clock_mhz": "clock {:g} MHz",
    "cpus": "{:g} cores",
    "mem_gib": "{:g} GiB",
    "read_mib_s": "{:g} MiB/s",
}


def _format_number(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "unknown"
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}") + unit


def _format_joules(value_j: float) -> str:
    return _format_number(1000 * value_j, " mJ") if value_j < 1.0 else _format_number(value_j, " J")
