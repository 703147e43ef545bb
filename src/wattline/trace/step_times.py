"""How long is a step of a job that a trace gives only by name: fitted curves, see step_times.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

import numpy as np

from wattline.table import Floats, Ints, Labels

_NODE_GPUS = 4  # of the machines on which the Pollux step times were measured


@cache
def _curves() -> dict[str, dict[str, dict[str, float]]]:
    return tomllib.loads(files("wattline.trace").joinpath("step_times.toml").read_text("utf-8"))


def known(section: str) -> tuple[str, ...]:
    """The names of which *section* knows a curve."""
    return tuple(_curves()[section])


def gavel_step_s(family: Labels, batch: Ints, gpus: Ints) -> Floats:
    """Seconds per step on V100s; nan for unknown families.

    (fixed_s + sample_s·batch + square_s·batch²)·gpus^-scaling: steps of all workers count together.
    """
    fixed_s, sample_s, square_s, scaling = _coefficients(
        "gavel", family, "fixed_s", "sample_s", "square_s", "scaling"
    )
    one_gpu_s = fixed_s + sample_s * batch + square_s * batch.astype(np.float64) ** 2
    return np.asarray(one_gpu_s * gpus.astype(np.float64) ** -scaling)


def pollux_step_s(application: Labels, batch: Ints, gpus: Ints) -> Floats:
    """Seconds per step on T4s, four to a node, of *batch* samples shared by *gpus*."""
    fixed_s, sample_s, second_gpu_s, second_node_s, doubling_s = _coefficients(
        "pollux", application, "fixed_s", "sample_s", "second_gpu_s", "second_node_s", "doubling_s"
    )
    beyond = gpus > _NODE_GPUS
    doublings = np.log2(np.maximum(gpus / _NODE_GPUS, 1.0))
    network_s = np.where(beyond, second_node_s + doubling_s * doublings, 0.0)
    return np.asarray(fixed_s + sample_s * batch / gpus + np.where(gpus > 1, second_gpu_s, 0.0) + network_s)


def pollux_steps(application: Labels, batch: Ints) -> Floats:
    """Whole iterations to the target at a constant *batch*: at_one·batch^-power."""
    at_one, power = _coefficients("pollux_steps", application, "at_one", "power")
    return np.ceil(at_one * np.maximum(batch, 1).astype(np.float64) ** -power)


def _coefficients(section: str, name: Labels, *keys: str) -> list[Floats]:
    curves = _curves()[section]
    tables = (np.array([float(curves.get(n, {}).get(key, np.nan)) for n in name.names]) for key in keys)
    return [np.asarray(table[name.codes]) for table in tables]
