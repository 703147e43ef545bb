"""Grouping of measurements that differ in one knob only into lines of a plot."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.measurement.points import Profile
from wattline.measurement.settings import KNOBS, Settings

MAX_LINES = 8
"""Lines of a plot; more would be hard to distinguish."""

INTEGER_KNOBS = frozenset(("gpus", "nodes", "fuse"))
"""Knobs with integer values; no curve is drawn between them."""

_FORMATS = {
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
_UNSET_TEXTS = {
    "cap_w": "no cap",
    "clock_mhz": "no clock",
    "cpus": "any cores",
    "mem_gib": "any memory",
    "read_mib_s": "any storage",
}
_CURVE_POINTS = 61


@dataclass(frozen=True)
class Line:
    """Rows that differ in one knob, in its order; *name* has the settings that distinguish the line."""

    name: str
    rows: Ints


def group_lines(rows: Profile, knob: str) -> tuple[list[Line], int]:
    """Return at most `MAX_LINES` lines against *knob*, and the number of all; a line has two values or more.

    Where the knob is the number of GPUs or nodes, a line has either the batch of the job or the batch per
    GPU in common, depending on which joins more rows.
    """
    keys = [name for name in KNOBS if name != knob]
    groups = _group_rows(rows, knob, keys)
    if knob in ("gpus", "nodes"):
        local = _group_rows(rows, knob, ["local" if name == "batch" else name for name in keys])
        if sum(map(len, local.values())) > sum(map(len, groups.values())):
            keys, groups = ["local" if name == "batch" else name for name in keys], local
    chosen = _select_lines(groups)
    differ = [i for i in range(len(keys)) if len({key[i] for key in chosen}) > 1]
    return [
        Line(", ".join(_format_setting(keys[i], key[i]) for i in differ), np.array(groups[key]))
        for key in chosen
    ], len(groups)


def list_curve_settings(rows: Profile, knob: str, line: Line) -> Settings:
    """Return the settings at which the curve of *line* is drawn."""
    taken = rows.settings.take(line.rows)
    if knob in INTEGER_KNOBS:
        return taken
    values = getattr(taken, knob)
    least, most = float(values.min()), float(values.max())
    between = np.geomspace if needs_log_axis(values) else np.linspace
    same = {name: getattr(taken, name)[0] for name in KNOBS}
    return Settings.of(**{**same, knob: between(least, most, _CURVE_POINTS)})


def needs_log_axis(values: Floats) -> bool:
    """Return True if *values* span a factor of 16 or more."""
    return bool(values.min() > 0 and values.max() >= 16 * values.min())


def _group_rows(rows: Profile, knob: str, keys: list[str]) -> dict[tuple[float, ...], list[int]]:
    """Return rows by all other knobs; for the knob `gpus`, each number of GPUs on its fewest nodes."""
    columns = {name: getattr(rows, name) for name in KNOBS}
    columns["local"] = rows.settings.local_batch
    shared = np.column_stack([np.nan_to_num(columns[name], nan=-1.0) for name in keys])
    if knob == "gpus":
        shared[:, keys.index("nodes")] = -1.0
    order = np.lexsort((rows.nodes, columns[knob]))
    grouped: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for row in order[~np.isnan(columns[knob][order])].tolist():
        group = grouped[tuple(shared[row].tolist())]
        if not group or columns[knob][group[-1]] < columns[knob][row]:
            group.append(row)
    return {key: group for key, group in grouped.items() if len(group) > 1}


def _select_lines(groups: dict[tuple[float, ...], list[int]]) -> list[tuple[float, ...]]:
    """Return the keys of at most `MAX_LINES` lines: of those with most points, evenly from first to last."""
    keys = sorted(groups)
    if len(keys) <= MAX_LINES:
        return keys
    longest = sorted(len(group) for group in groups.values())[-MAX_LINES]
    keys = [key for key in keys if len(groups[key]) >= longest]
    places = np.round(np.linspace(0, len(keys) - 1, MAX_LINES)).astype(int)
    return [keys[place] for place in places.tolist()]


def _format_setting(name: str, value: float) -> str:
    if value < 0 or math.isnan(value):
        return _UNSET_TEXTS.get(name, f"any {name}")
    text = _FORMATS[name].format(value)
    return text.removesuffix("s") if name in ("gpus", "nodes", "cpus") and value == 1 else text
