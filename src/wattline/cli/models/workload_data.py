"""What is known of a fitted workload, and what is only assumed: as data for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wattline.core.table import Floats
from wattline.measurement.devices import DEVICES
from wattline.models.power.curves import Curves
from wattline.models.power.throttle import INSENSITIVE
from wattline.models.workload import WAITING, Workload


def finite(value: float) -> float | None:
    """A number as strict JSON has it; None where there is none."""
    return float(value) if math.isfinite(value) else None


def workload_data(w: Workload) -> dict[str, Any]:
    """All that is known of *w*; errors are relative, and null where nothing could be held out."""
    return {
        "model": w.model,
        "gpu": w.gpu,
        "source": w.source.name,
        "points": w.source.points,
        "held_out": held_out_data(w),
        "watts_measured": w.metered,
        "measured": {name: list(ends) for name, ends in w.measured.items()},
        "assumed": assumed(w),
        "parameters": _parameters(w),
    }


def held_out_data(w: Workload) -> dict[str, float | None]:
    """Mean relative errors at points that the fit had not seen."""
    return {
        "samples_error": finite(w.source.samples_error),
        "watts_error": finite(w.source.watts_error),
    }


def _parameters(w: Workload) -> dict[str, Any]:
    top_w = [{"batch": b, "watts": finite(v)} for b, v in _pairs(w.throttle.batch, w.throttle.top_w)]
    return {
        "usual_batch": finite(w.usual_batch),
        "speed": _numbers(w.speed),
        "top_w": top_w if w.metered else [],
        "cap_w": _laws(w.throttle.caps),
        "clock_mhz": _laws(w.throttle.clocks),
        "wait": w.wait,
        "demand": _numbers(w.demand),
        "array": _numbers(w.array),
    }


def _numbers(part: Any) -> dict[str, float | None]:
    return {name: finite(value) for name, value in vars(part).items() if isinstance(value, int | float)}


def _pairs(first: Floats, second: Floats) -> list[tuple[float, float]]:
    return list(zip(first.tolist(), second.tolist(), strict=True))


def _laws(curves: Curves | None) -> list[dict[str, Any]]:
    """One entry per local batch size: the coefficients of its laws by name."""
    if curves is None:
        return []
    return [
        {
            "batch": float(curves.batch[row]),
            "bend": float(curves.bend[row]),
            "rate": _named(curves.names[0], curves.rate_law[row]),
            "watts": _named(curves.names[1], curves.watts_law[row]),
        }
        for row in range(len(curves.batch))
    ]


def _named(names: Sequence[str], law: Floats) -> dict[str, float] | None:
    values = law.tolist()
    if any(map(math.isnan, values)):
        return None
    return dict(zip(names, values, strict=True))


def assumed(w: Workload) -> dict[str, str]:
    """What nobody measured of *w*, by knob or part, and what is taken instead."""
    taken = {}
    if "batch" not in w.measured:
        taken["batch"] = "a step takes as long as its samples, in proportion"
    if "gpus" not in w.measured:
        taken["gpus"] = "more GPUs are faster in proportion"
    if "nodes" not in w.measured:
        taken["nodes"] = "several nodes synchronise a tenth longer than as many GPUs on one"
    if not w.metered:
        taken["watts"] = _device_watts(w.gpu)
    if w.throttle.caps is None:
        taken["cap_w"] = _cap(w)
    if w.throttle.clocks is None:
        taken["clock_mhz"] = _clock(w)
    if w.wait == WAITING:
        taken["wait"] = f"a GPU that waits draws {_percent(WAITING)} of one that computes"
    if not {"cpus", "mem_gib"} & set(w.measured):
        taken["demand"] = "cores and memory never hold it back"
    if "fuse" not in w.measured:
        taken["array"] = f"each further job of an array adds {_percent(w.array.serial)} of a step"
    return taken


def _device_watts(gpu: str) -> str:
    if gpu not in DEVICES:
        return f"nothing: {gpu} is no built-in device, so its watts are unknown"
    return f"the device's {DEVICES[gpu].busy_w:g} W of a GPU that computes"


def _cap(w: Workload) -> str:
    if _has_watts(w.throttle.clocks):
        return "what the clock does that draws as many watts"
    if not w.metered and w.gpu not in DEVICES:
        return f"nothing: {w.gpu} is no built-in device, so what a cap does is unknown"
    return (
        f"watts above idle go with the square of the clock, and {_percent(INSENSITIVE)} of a step ignores it"
    )


def _clock(w: Workload) -> str:
    if w.gpu not in DEVICES:
        return f"nothing: {w.gpu} is no built-in device, so what a clock does is unknown"
    ignores = f"{_percent(INSENSITIVE)} of a step ignores the clock"
    if _has_watts(w.throttle.caps):
        return f"{ignores}, and watts are those of the cap that is as fast"
    return f"{ignores}, and watts above idle go with its square"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _has_watts(curves: Curves | None) -> bool:
    return curves is not None and curves.metered
