"""Sweeps and recurring jobs in a trace, and what fusing and tuning them could save."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.table import Bools, Floats, Ints, Labels
from wattline.measurement.devices import DEVICES
from wattline.models.array_speed import DEFAULT_SERIAL, ArrayModel
from wattline.models.power.throttle import Throttle
from wattline.trace.recorded import RecordedSchedule

_WIDTH = 8  # members of a fused array at most
_LEAST_MEMBERS = 3  # of a sweep
_TOGETHER_S = 600.0  # between two jobs of one sweep
_LEAST_RUNS = 5  # of a recurring job
_SLOWDOWN = 1.1  # that tuning may cost


@dataclass(frozen=True)
class Potential:
    """Possible savings of sweeps and recurring jobs; shares are of the GPU hours of all counted jobs.

    Savings are ranges: the lower end is no gain at all, because nothing is known of these jobs; the upper end
    is what the stated model gives.
    """

    known: bool  # the trace says which jobs belong together
    sweeps: int
    sweep_jobs: int
    sweep_share: float
    fusion_saves: float  # share of all GPU hours, at most
    recurring: int  # distinct jobs that recur
    recurring_runs: int
    recurring_share: float
    tuning_saves: float  # share of the energy of the GPUs of all jobs, at most

    def as_dict(self) -> dict[str, Any]:
        """Return the potential for JSON; savings as `[low, high]`."""
        data = asdict(self)
        return data | {name: [0.0, data[name]] for name in ("fusion_saves", "tuning_saves")}


def estimate_potential(
    jobs: Jobs, recorded: RecordedSchedule | None, counted: Bools, nodes: Nodes
) -> Potential:
    """Return the potential of the counted jobs.

    A sweep is a job array, or at least three jobs of one user with the same GPUs and the same command or name
    up to its digits, each submitted within ten minutes of the one before. Fused, B of them take
    1 + 0.65 (B - 1) times as long as one; see `wattline.models.array_speed`. A recurring job has run at least
    five times with the same command, folder and name. A power limit that slows it by at most 10 % saves what
    `wattline.models.power.throttle` says of its kind.
    """
    command = _strip_digits(jobs.key)
    name = _strip_digits(recorded.name) if recorded is not None else command
    what = np.where(command >= 0, command, np.where(name >= 0, name + len(jobs.key.names), -1))
    array = _number(recorded.array) if recorded is not None else np.full(len(jobs), -1)
    gpu_s = jobs.gpus * jobs.duration_s
    total = max(float(gpu_s[counted].sum()), 1e-9)
    sweep = _find_sweeps(jobs, what, array, counted)
    in_sweep = sweep >= 0
    members = np.bincount(sweep[in_sweep]) if in_sweep.any() else np.zeros(0, dtype=np.int64)
    width = np.minimum(members, _WIDTH).astype(np.float64)
    saved = 1 - ArrayModel(DEFAULT_SERIAL).slowdown(np.maximum(width, 1.0)) / np.maximum(width, 1.0)
    fusion = float((gpu_s[in_sweep] * saved[sweep[in_sweep]]).sum()) / total
    recurs = _find_recurring(_number(jobs.key), counted)
    energy = float((gpu_s * (1 - _find_energy_ratio(nodes)))[recurs >= 0].sum()) / total
    return Potential(
        known=bool((what >= 0).any() or (array >= 0).any()),
        sweeps=len(members),
        sweep_jobs=int(in_sweep.sum()),
        sweep_share=float(gpu_s[in_sweep].sum()) / total,
        fusion_saves=fusion,
        recurring=len(np.unique(recurs[recurs >= 0])),
        recurring_runs=int((recurs >= 0).sum()),
        recurring_share=float(gpu_s[recurs >= 0].sum()) / total,
        tuning_saves=energy,
    )


def _number(labels: Labels) -> Ints:
    """Return the code of each word; -1 for the empty one."""
    empty = np.array([word == "" for word in labels.names] or [True])
    return np.where(empty[labels.codes], -1, labels.codes)


def _strip_digits(labels: Labels) -> Ints:
    """Return a number for each word without its digits; -1 for the empty one."""
    seen: dict[str, int] = {}
    codes = [
        seen.setdefault(re.sub(r"[\d.]+", "#", word), len(seen)) if word else -1 for word in labels.names
    ]
    return np.array(codes or [-1], dtype=np.int64)[labels.codes]


def _find_sweeps(jobs: Jobs, what: Ints, array: Ints, counted: Bools) -> Ints:
    """Return the number of each job's sweep; -1: none."""
    sweep = np.full(len(jobs), -1, dtype=np.int64)
    is_array = counted & (array >= 0)
    rows = np.flatnonzero(counted & (is_array | (what >= 0)))
    if not len(rows):
        return sweep
    group = np.where(is_array, array, what + int(array.max(initial=0)) + 1)[rows]
    order = np.lexsort((jobs.submit_s[rows], jobs.gpus[rows], jobs.user.codes[rows], group))
    rows, group = rows[order], group[order]
    same = (group[1:] == group[:-1]) & (jobs.gpus[rows][1:] == jobs.gpus[rows][:-1])
    same &= jobs.user.codes[rows][1:] == jobs.user.codes[rows][:-1]
    same &= is_array[rows][1:] | (np.diff(jobs.submit_s[rows]) <= _TOGETHER_S)
    number = np.concatenate(([0], np.cumsum(~same)))
    large = np.bincount(number) >= _LEAST_MEMBERS
    renumbered = np.cumsum(large) - 1
    sweep[rows] = np.where(large[number], renumbered[number], -1)
    return sweep


def _find_recurring(key: Ints, counted: Bools) -> Ints:
    """Return the key of each job that has run often enough; -1: none."""
    rows = counted & (key >= 0)
    if not rows.any():
        return np.full(len(key), -1, dtype=np.int64)
    runs = np.bincount(key[rows], minlength=int(key.max()) + 1)
    return np.where(rows & (runs[np.maximum(key, 0)] >= _LEAST_RUNS), key, -1)


def _find_energy_ratio(nodes: Nodes) -> float:
    """Return the least energy of a GPU under a limit that slows it little, relative to no limit.

    The mean over the GPUs of *nodes*; kinds that are not known save nothing.
    """
    ratios = [_find_kind_ratio(kind) for kind in nodes.kind.names]
    return float(np.average(np.array(ratios)[nodes.kind.codes], weights=nodes.gpus))


def _find_kind_ratio(kind: str) -> float:
    device = DEVICES.get(kind)
    if device is None:
        return 1.0
    caps_w: Floats = np.linspace(device.min_cap_w, device.max_cap_w, 31)
    free = Throttle(kind, np.ones(1), np.full(1, np.nan))
    rate = np.array([float(free.at(np.ones(1), np.full(1, cap), np.full(1, np.nan))[0][0]) for cap in caps_w])
    energy = np.minimum(caps_w, device.busy_w) / device.busy_w / np.maximum(rate, 1e-9)
    return float(energy[rate >= 1 / _SLOWDOWN].min(initial=1.0))
