"""What comes with the package: fitted workloads, as a data file that people can read.

`benchmarks/fit_library.py` makes library.toml from published measurements; only coefficients are in it.
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
from wattline.models.array_speed import Array
from wattline.models.demand import Demand
from wattline.models.power.curves import Curves, caps_from_laws, clocks_from_laws
from wattline.models.power.throttle import Throttle
from wattline.models.speed import Speed
from wattline.models.workload import WAITING, Source, Workload
from wattline.models.workload_models import Measured


@cache
def library() -> Measured:
    """The workloads that come with the package: what is believed of jobs with a known model."""
    text = files("wattline.models").joinpath("library.toml").read_text("utf-8")
    return read_models(text)


def read_models(text: str) -> Measured:
    """Models from the text that `models_toml` made of them."""
    return Measured(tuple(_workload(entry) for entry in tomllib.loads(text)["workload"]))


def reread(workload: Workload) -> Workload:
    """The workload as somebody sees it who has its coefficients only."""
    return read_models(models_toml([workload])).workloads[0]


def write_models(models: Measured, path: str | Path) -> None:
    """Write fitted *models* to a file that `load_models` reads."""
    Path(path).write_text(models_toml(models.workloads), encoding="utf-8")


def load_models(path: str | Path) -> Measured:
    """Models from a file that `write_models` wrote."""
    try:
        models = read_models(Path(path).read_text("utf-8"))
        for w in models.workloads:
            predicted = w.extrapolate(Settings.of(batch=np.array([w.usual_batch])))
            if not (np.isfinite(predicted.samples_s) & (predicted.samples_s > 0)).all():
                raise ValueError(f"{w.model} on {w.gpu} does {predicted.samples_s[0]} samples/s")
        return models
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
        raise ConfigError(f"{path}: cannot be read: {why}") from None
    except (tomllib.TOMLDecodeError, AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:
        raise ConfigError(f"{path}: is not a file of fitted models: {problem!r}") from None


def models_toml(workloads: Iterable[Workload]) -> str:
    """*workloads* as TOML: their coefficients to four digits, where they come from, and how good they are."""
    return "\n".join(_entry(w) for w in workloads) or "workload = []\n"


def _entry(w: Workload) -> str:
    names = {"model": w.model, "gpu": w.gpu, "source": w.source.name}
    lines = ["[[workload]]", *(f"{key} = {_quoted(text)}" for key, text in names.items())]
    lines += [f"points = {w.source.points}", *_pairs(samples_error=w.source.samples_error)]
    lines += _pairs(watts_error=w.source.watts_error)
    lines += [] if np.isnan(w.usual_batch) else [f"usual_batch = {w.usual_batch:.12g}"]
    if w.wait != WAITING:
        lines += _pairs(wait=w.wait)
    if w.throttle.more != 1.0:
        lines += _pairs(more=w.throttle.more)
    lines += [f"measured.{name} = [{a:.12g}, {b:.12g}]" for name, (a, b) in w.measured.items()]
    for part in ("speed", "demand", "array"):
        thing = getattr(w, part)
        default = type(thing)()
        changed = {k: v for k, v in vars(thing).items() if k != "unsure" and v != getattr(default, k)}
        lines += [f"{part}.{line}" for line in _pairs(**changed)]
    if not np.isnan(w.throttle.top_w).all() and not any(
        c and c.metered for c in (w.throttle.caps, w.throttle.clocks)
    ):
        lines += [f"watts.batch = {_exact(w.throttle.batch)}", f"watts.top_w = {_row(w.throttle.top_w)}"]
    for knob, curves in (("cap_w", w.throttle.caps), ("clock_mhz", w.throttle.clocks)):
        if curves is not None:
            lines += [f"{knob}.range = [{curves.first:.12g}, {curves.last:.12g}]"]
            lines += [f"{knob}.batch = {_exact(curves.batch)}", f"{knob}.bend = {_row(curves.bend)}"]
            lines += [f"{knob}.rate = [", *(f"  {_row(row)}," for row in curves.rate_law), "]"]
            if curves.metered:
                lines += [f"{knob}.watts = [", *(f"  {_row(row)}," for row in curves.watts_law), "]"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _pairs(**values: float) -> list[str]:
    return [f"{name} = {_n(value)}" for name, value in values.items() if not np.isnan(value)]


def _n(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.4g}"


def _exact(values: Floats) -> str:
    return f"[{', '.join(f'{v:.12g}' for v in values.tolist())}]"


def _row(values: Floats) -> str:
    return f"[{', '.join(_n(v) for v in values.tolist())}]"


def _workload(entry: Mapping[str, Any]) -> Workload:
    measured = {name: (float(a), float(b)) for name, (a, b) in entry.get("measured", {}).items()}
    caps = _curves(entry.get("cap_w"), caps_from_laws)
    clocks = _curves(entry.get("clock_mhz"), clocks_from_laws)
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
            more=float(entry.get("more", 1.0)),
        ),
        demand=Demand(**entry.get("demand", {})),
        array=Array(**entry.get("array", {})),
        wait=float(entry.get("wait", WAITING)),
        usual_batch=float(entry.get("usual_batch", np.nan)),
        measured=MappingProxyType(measured),
        metered=not bool(np.isnan(top_w).all()),
        source=Source(
            entry.get("source", ""),
            int(entry.get("points", 0)),
            float(entry.get("samples_error", np.nan)),
            float(entry.get("watts_error", np.nan)),
        ),
    )


def _curves(laws: Mapping[str, Any] | None, make: Callable[..., Curves]) -> Curves | None:
    if laws is None:
        return None
    batch, bend, rate = (np.array(laws[key], dtype=np.float64) for key in ("batch", "bend", "rate"))
    watts = np.array(laws["watts"], dtype=np.float64) if "watts" in laws else None
    first, last = (float(end) for end in laws["range"])
    return make(batch, first, last, bend, rate, watts)
