"""Work of jobs that a trace gives only by name, from the library and a few fits."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

import numpy as np

from wattline.core.table import Floats, Labels
from wattline.errors import NotFitted
from wattline.measurement.settings import Settings
from wattline.models.library import library


def list_models(source: str) -> tuple[str, ...]:
    """Return the models that *source* measured."""
    return tuple(dict.fromkeys(w.model for w in library().workloads if w.source.name == source))


def predict_samples_s(source: str, gpu: str, model: Labels, settings: Settings) -> Floats:
    """Return samples per second as *source* measured them on *gpu*; nan for other models."""
    speed = np.full(len(model), np.nan)
    for code, name in enumerate(model.names):
        here = np.flatnonzero(model.codes == code)
        try:
            found = library().find(f"{source}/{name}", gpu)
        except NotFitted:
            continue
        speed[here] = found.extrapolate(settings.take(here)).samples_s
    return speed


@cache
def _steps() -> dict[str, dict[str, float]]:
    return tomllib.loads(files("wattline.trace").joinpath("pollux_steps.toml").read_text("utf-8"))


def predict_pollux_steps(application: Labels, batch: Floats) -> Floats:
    """Return whole iterations to the target at a constant *batch*: at_one·batch^-power; nan where unknown."""
    fits = [_steps().get(name, {}) for name in application.names]
    at_one, power = (
        np.array([fit.get(key, np.nan) for fit in fits])[application.codes] for key in ("at_one", "power")
    )
    return np.asarray(np.ceil(at_one * np.maximum(batch, 1.0) ** -power))
