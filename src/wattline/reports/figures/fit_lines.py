"""Which measurements differ in one knob only, and so belong on one line of a plot?"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.measurement.points import Profile
from wattline.measurement.settings import KNOBS, Settings

MOST = 8
"""Lines of a plot; more cannot be told apart."""

WHOLE = frozenset(("gpus", "nodes", "fuse"))
"""Knobs between whose values there is nothing."""

_SAID = {
    "gpus": "{:g} GPUs",
    "nodes": "{:g} nodes",
    "batch": "batch {:g}",
    "local": "batch {:g} per GPU",
    "cap_w": "cap {:g} W",
    "clock_mhz": "clock {:g} MHz",
    "cpus": "{:g} cores",
    "mem_gib": "{:.4g} GiB",
    "read_mib_s": "{:.4g} MiB/s",
    "fuse": "{:g} fused",
}
_UNSET = {
    "cap_w": "no cap",
    "clock_mhz": "no clock",
    "cpus": "any cores",
    "mem_gib": "any memory",
    "read_mib_s": "any storage",
}
_STEPS = 61


@dataclass(frozen=True)
class Line:
    """Rows that differ in one knob, in its order; *name* says what they share and others do not."""

    name: str
    rows: Ints


def lines(rows: Profile, knob: str) -> tuple[list[Line], int]:
    """At most `MOST` lines against *knob*, and how many there are; a line has two values or more.

    Where the number of GPUs or nodes is the knob, either the batch or its part of a GPU is the same
    on a line, whichever joins more rows.
    """
    keys = [name for name in KNOBS if name != knob]
    groups = _groups(rows, knob, keys)
    if knob in ("gpus", "nodes"):
        local = _groups(rows, knob, ["local" if name == "batch" else name for name in keys])
        if sum(map(len, local.values())) > sum(map(len, groups.values())):
            keys, groups = ["local" if name == "batch" else name for name in keys], local
    chosen = _spread(groups)
    differ = [i for i in range(len(keys)) if len({key[i] for key in chosen}) > 1]
    return [
        Line(", ".join(_say(keys[i], key[i]) for i in differ), np.array(groups[key])) for key in chosen
    ], len(groups)


def steps(rows: Profile, knob: str, line: Line) -> Settings:
    """The settings at which the curve of *line* is drawn."""
    taken = rows.settings.take(line.rows)
    if knob in WHOLE:
        return taken
    values = getattr(taken, knob)
    least, most = float(values.min()), float(values.max())
    between = np.geomspace if wide(values) else np.linspace
    same = {name: getattr(taken, name)[0] for name in KNOBS}
    return Settings.of(**{**same, knob: between(least, most, _STEPS)})


def wide(values: Floats) -> bool:
    """Whether a logarithmic axis suits *values*."""
    return bool(values.min() > 0 and values.max() >= 16 * values.min())


def _groups(rows: Profile, knob: str, keys: list[str]) -> dict[tuple[float, ...], list[int]]:
    """Rows by all other knobs; where GPUs are counted, each number of them on its fewest nodes."""
    columns = {name: getattr(rows, name) for name in KNOBS}
    columns["local"] = rows.settings.local_batch
    shared = np.column_stack([np.nan_to_num(columns[name], nan=-1.0) for name in keys])
    if knob == "gpus":
        shared[:, keys.index("nodes")] = -1.0
    order = np.lexsort((rows.nodes, columns[knob]))
    found: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for row in order[~np.isnan(columns[knob][order])].tolist():
        group = found[tuple(shared[row].tolist())]
        if not group or columns[knob][group[-1]] < columns[knob][row]:
            group.append(row)
    return {key: group for key, group in found.items() if len(group) > 1}


def _spread(groups: dict[tuple[float, ...], list[int]]) -> list[tuple[float, ...]]:
    """Of many lines those with the most points, evenly chosen from the first to the last."""
    keys = sorted(groups)
    if len(keys) <= MOST:
        return keys
    longest = sorted(len(group) for group in groups.values())[-MOST]
    keys = [key for key in keys if len(groups[key]) >= longest]
    places = np.round(np.linspace(0, len(keys) - 1, MOST)).astype(int)
    return [keys[place] for place in places.tolist()]


def _say(name: str, value: float) -> str:
    if value < 0 or math.isnan(value):
        return _UNSET.get(name, f"any {name}")
    text = _SAID[name].format(value)
    return text.removesuffix("s") if name in ("gpus", "nodes", "cpus") and value == 1 else text
