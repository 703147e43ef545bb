"""Fitted workload as JSON: what was measured, and what is only assumed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wattline.core.table import Floats
from wattline.measurement.devices import DEVICES
from wattline.models.power.curves import Curves
from wattline.models.power.throttle import INSENSITIVE
from wattline.models.workload import DEFAULT_WAITING_POWER, Workload


def finite_or_none(value: float) -> float | None:
    """Return *value* for strict JSON: None instead of nan and infinity."""
    return float(value) if math.isfinite(value) else None


def encode_workload(w: Workload) -> dict[str, Any]:
    """Return *w* as JSON; errors are relative, and null if no point could be held out."""
    return {
        "model": w.model,
        "gpu": w.gpu,
        "source": w.source.name,
        "points": w.source.points,
        "held_out": encode_errors(w),
        "watts_measured": w.metered,
        "measured": {name: list(ends) for name, ends in w.measured.items()},
        "assumed": list_assumptions(w),
        "parameters": _encode_parameters(w),
    }


def encode_errors(w: Workload) -> dict[str, float | None]:
    """Return the mean relative errors at points that were held out of the fit."""
    return {
        "samples_error": finite_or_none(w.source.samples_error),
        "watts_error": finite_or_none(w.source.watts_error),
    }


def _encode_parameters(w: Workload) -> dict[str, Any]:
    top_w = [
        {"batch": b, "watts": finite_or_none(v)} for b, v in _zip_lists(w.throttle.batch, w.throttle.top_w)
    ]
    return {
        "usual_batch": finite_or_none(w.usual_batch),
        "speed": _encode_numbers(w.speed),
        "top_w": top_w if w.metered else [],
        "cap_w": _encode_laws(w.throttle.caps),
        "clock_mhz": _encode_laws(w.throttle.clocks),
        "wait": w.waiting_power,
        "demand": _encode_numbers(w.demand),
        "array": _encode_numbers(w.array),
    }


def _encode_numbers(part: Any) -> dict[str, float | None]:
    return {
        name: finite_or_none(value) for name, value in vars(part).items() if isinstance(value, int | float)
    }


def _zip_lists(first: Floats, second: Floats) -> list[tuple[float, float]]:
    return list(zip(first.tolist(), second.tolist(), strict=True))


def _encode_laws(curves: Curves | None) -> list[dict[str, Any]]:
    """Return the coefficients of the laws by name, one entry per batch size of a GPU."""
    if curves is None:
        return []
    return [
        {
            "batch": float(curves.batch[row]),
            "bend": float(curves.bend[row]),
            "rate": _encode_law(curves.names[0], curves.rate_law[row]),
            "watts": _encode_law(curves.names[1], curves.watts_law[row]),
        }
        for row in range(len(curves.batch))
    ]


def _encode_law(names: Sequence[str], law: Floats) -> dict[str, float] | None:
    values = law.tolist()
    if any(map(math.isnan, values)):
        return None
    return dict(zip(names, values, strict=True))


def list_assumptions(w: Workload) -> dict[str, str]:
    """Return what is assumed for each setting and part of *w* that was not measured."""
    assumptions = {}
    if "batch" not in w.measured:
        assumptions["batch"] = "a step takes as long as its samples, in proportion"
    if "gpus" not in w.measured:
        assumptions["gpus"] = "more GPUs are faster in proportion"
    if "nodes" not in w.measured:
        assumptions["nodes"] = "several nodes synchronise a tenth longer than as many GPUs on one"
    if not w.metered:
        assumptions["watts"] = _assume_watts(w.gpu)
    if w.throttle.caps is None:
        assumptions["cap_w"] = _assume_cap(w)
    if w.throttle.clocks is None:
        assumptions["clock_mhz"] = _assume_clock(w)
    if w.waiting_power == DEFAULT_WAITING_POWER:
        assumptions["wait"] = (
            f"a GPU that waits draws {_format_percent(DEFAULT_WAITING_POWER)} of one that computes"
        )
    if not {"cpus", "mem_gib"} & set(w.measured):
        assumptions["demand"] = "cores and memory never hold it back"
    if "fuse" not in w.measured:
        assumptions["array"] = (
            f"each further job of an array adds {_format_percent(w.array.serial)} of a step"
        )
    return assumptions


def _assume_watts(gpu: str) -> str:
    if gpu not in DEVICES:
        return f"nothing: {gpu} is no built-in device, so its watts are unknown"
    return f"the device's {DEVICES[gpu].busy_w:g} W of a GPU that computes"


def _assume_cap(w: Workload) -> str:
    if _has_watts(w.throttle.clocks):
        return "the effect of the clock that draws as many watts"
    if not w.metered and w.gpu not in DEVICES:
        return f"nothing: {w.gpu} is no built-in device, so the effect of a cap is unknown"
    ignores = f"{_format_percent(INSENSITIVE)} of a step ignores it"
    return f"watts above idle go with the square of the clock, and {ignores}"


def _assume_clock(w: Workload) -> str:
    if w.gpu not in DEVICES:
        return f"nothing: {w.gpu} is no built-in device, so the effect of a clock is unknown"
    ignores = f"{_format_percent(INSENSITIVE)} of a step ignores the clock"
    if _has_watts(w.throttle.caps):
        return f"{ignores}, and watts are those of the cap that is as fast"
    return f"{ignores}, and watts above idle go with its square"


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _has_watts(curves: Curves | None) -> bool:
    return curves is not None and curves.metered
