"""The library of fitted workloads and its TOML format.

`benchmarks/fit_library.py` generates library.toml from published measurements; it holds coefficients only.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from wattline.core.table import Floats
from wattline.errors import ConfigError
from wattline.measurement.settings import Settings
from wattline.models.array_speed import ArrayModel
from wattline.models.demand import DemandModel
from wattline.models.power.curves import Curves, caps_from_laws, clocks_from_laws
from wattline.models.power.throttle import Throttle
from wattline.models.speed import Speed
from wattline.models.workload import DEFAULT_WAITING_POWER, MeasurementSource, Workload
from wattline.models.workload_models import WorkloadModels


@cache
def library() -> WorkloadModels:
    """Return the workload models that come with the package."""
    text = files("wattline.models").joinpath("library.toml").read_text("utf-8")
    return parse_models(text)


def parse_models(text: str) -> WorkloadModels:
    """Parse the text that `format_models` produces."""
    return WorkloadModels(tuple(_parse_workload(entry) for entry in tomllib.loads(text)["workload"]))


def reload_coefficients(workload: Workload) -> Workload:
    """Return the workload as restored from its TOML coefficients."""
    return parse_models(format_models([workload])).workloads[0]


def write_models(models: WorkloadModels, path: str | Path) -> None:
    """Write fitted *models* to a TOML file."""
    Path(path).write_text(format_models(models.workloads), encoding="utf-8")


def load_models(path: str | Path) -> WorkloadModels:
    """Load models from a file written by `write_models`.

    Raises `ConfigError` if the file cannot be read or a workload predicts no positive speed.
    """
    try:
        models = parse_models(Path(path).read_text("utf-8"))
        for w in models.workloads:
            predicted = w.extrapolate(Settings.of(batch=np.array([w.usual_batch])))
            if not (np.isfinite(predicted.samples_s) & (predicted.samples_s > 0)).all():
                raise ValueError(f"{w.model} on {w.gpu} is predicted at {predicted.samples_s[0]} samples/s")
        return models
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    except (tomllib.TOMLDecodeError, AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:
        raise ConfigError(f"{path}: is not a file of fitted models: {problem!r}") from None


def format_models(workloads: Iterable[Workload]) -> str:
    """Return *workloads* as TOML: coefficients to four digits, source and errors of each."""
    return "\n".join(_format_workload(w) for w in workloads) or "workload = []\n"


def _format_workload(w: Workload) -> str:
    names = {"model": w.model, "gpu": w.gpu, "source": w.source.name}
    lines = ["[[workload]]", *(f"{key} = {_quote(text)}" for key, text in names.items())]
    lines += [f"points = {w.source.points}", *_format_pairs(samples_error=w.source.samples_error)]
    lines += _format_pairs(watts_error=w.source.watts_error)
    lines += [f"misfits = {json.dumps(w.source.misfits)}"] if w.source.misfits else []
    lines += [] if np.isnan(w.usual_batch) else [f"usual_batch = {w.usual_batch:.12g}"]
    if w.waiting_power != DEFAULT_WAITING_POWER:
        lines += _format_pairs(wait=w.waiting_power)
    if w.throttle.watts_factor != 1.0:
        lines += _format_pairs(more=w.throttle.watts_factor)
    lines += [f"measured.{name} = [{a:.12g}, {b:.12g}]" for name, (a, b) in w.measured.items()]
    for part in ("speed", "demand", "array"):
        thing = getattr(w, part)
        default = type(thing)()
        changed = {k: v for k, v in vars(thing).items() if k != "uncertainty" and v != getattr(default, k)}
        lines += [f"{part}.{line}" for line in _format_pairs(**changed)]
    if not np.isnan(w.throttle.top_w).all() and not any(
        c and c.metered for c in (w.throttle.caps, w.throttle.clocks)
    ):
        lines += [f"watts.batch = {_format_exact(w.throttle.batch)}"]
        lines += [f"watts.top_w = {_format_row(w.throttle.top_w)}"]
    for knob, curves in (("cap_w", w.throttle.caps), ("clock_mhz", w.throttle.clocks)):
        if curves is not None:
            lines += [f"{knob}.range = [{curves.first:.12g}, {curves.last:.12g}]"]
            lines += [f"{knob}.batch = {_format_exact(curves.batch)}"]
            lines += [f"{knob}.bend = {_format_row(curves.bend)}"]
            lines += [f"{knob}.rate = [", *(f"  {_format_row(row)}," for row in curves.rate_law), "]"]
            if curves.metered:
                lines += [f"{knob}.watts = [", *(f"  {_format_row(row)}," for row in curves.watts_law), "]"]
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _format_pairs(**values: float) -> list[str]:
    return [f"{name} = {_format_number(value)}" for name, value in values.items() if not np.isnan(value)]


def _format_number(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.4g}"


def _format_exact(values: Floats) -> str:
    return f"[{', '.join(f'{v:.12g}' for v in values.tolist())}]"


def _format_row(values: Floats) -> str:
    return f"[{', '.join(_format_number(v) for v in values.tolist())}]"


def _parse_workload(entry: Mapping[str, Any]) -> Workload:
    measured = {name: (float(a), float(b)) for name, (a, b) in entry.get("measured", {}).items()}
    caps = _parse_curves(entry.get("cap_w"), caps_from_laws)
    clocks = _parse_curves(entry.get("clock_mhz"), clocks_from_laws)
    watts = entry.get("watts", {})
    batch, top_w = np.array(watts.get("batch", [1.0])), np.array(watts.get("top_w", [np.nan]))
    for curves in (clocks, caps):
        if curves is not None and curves.metered:
            batch, top_w = curves.batch, curves.at(curves.batch, np.full(len(curves.batch), curves.last))[1]
    return Workload(
        model=entry["model"],
        gpu=entry["gpu"],
        speed=Speed(**entry.get("speed", {})),
        throttle=Throttle(
            gpu=entry["gpu"],
            batch=batch.astype(np.float64),
            top_w=top_w.astype(np.float64),
            caps=caps,
            clocks=clocks,
            watts_factor=float(entry.get("more", 1.0)),
        ),
        demand=DemandModel(**entry.get("demand", {})),
        array=ArrayModel(**entry.get("array", {})),
        waiting_power=float(entry.get("wait", DEFAULT_WAITING_POWER)),
        usual_batch=float(entry.get("usual_batch", np.nan)),
        measured=MappingProxyType(measured),
        metered=not bool(np.isnan(top_w).all()),
        source=MeasurementSource(
            entry.get("source", ""),
            int(entry.get("points", 0)),
            float(entry.get("samples_error", np.nan)),
            float(entry.get("watts_error", np.nan)),
            tuple(entry.get("misfits", ())),
        ),
    )


def _parse_curves(laws: Mapping[str, Any] | None, make: Callable[..., Curves]) -> Curves | None:
    if laws is None:
        return None
    batch, bend, rate = (np.array(laws[key], dtype=np.float64) for key in ("batch", "bend", "rate"))
    watts = np.array(laws["watts"], dtype=np.float64) if "watts" in laws else None
    first, last = (float(end) for end in laws["range"])
    return make(batch, first, last, bend, rate, watts)
