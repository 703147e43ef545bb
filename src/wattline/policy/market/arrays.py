"""Fused arrays: jobs of a sweep that train as one, where that costs all of them less at the prices.

An array is one job in the place of its leader: it has the work of its longest member, the weight of all of
them, and the columns of an array of its width. So every member is charged until the array ends, not by its
progress. Jobs that wait form arrays of the width at which each member costs least, work and energy included;
an array that runs stays as it is and only loses the members that end, as in the stage `fuse`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.models.array_speed import has_fusion_key
from wattline.models.configurations import MOST_FUSED
from wattline.policy.elastic.power_draw import compute_watts_factor
from wattline.policy.market.prices import Prices, compute_costs
from wattline.policy.market.response import MarketRows
from wattline.policy.market.scene import Scene
from wattline.policy.market.time_values import TimeValues

_GAIN = 0.03  # of its cost: below it a job stays alone, because prices fall once others are fused


class Family(NamedTuple):
    """Rows that wait and may be one array, the shortest first."""

    rows: Ints
    wanted: bool  # it asks to be fused whenever possible


def find_running_arrays(snapshot: Snapshot) -> Ints:
    """Return for each row of the queue the row that leads its array; its own if it is alone or waits."""
    queue, leases = snapshot.queue, snapshot.leases
    leader = np.arange(len(queue), dtype=np.int64)
    key = snapshot.jobs.fuse.codes
    shared = (leases.job != leases.group) & (key[leases.job] == key[leases.group])
    if shared.any():
        shared &= has_fusion_key(snapshot.jobs)[leases.job]
        row, lead = (np.searchsorted(queue.job, column[shared]) for column in (leases.job, leases.group))
        leader[row] = lead
    return leader


def merge_arrays(scene: Scene, times: TimeValues, leader: Ints) -> tuple[Scene, TimeValues]:
    """Return scene and times in which each *leader* stands for its array, and the other members are closed.

    An array of which a member is not open to any GPUs is not merged: then its members part.
    """
    member = np.flatnonzero(leader != np.arange(len(leader)))
    together = scene.open_to[member] == scene.open_to[leader[member]]
    apart = np.isin(leader, leader[member[~together]])
    leader = np.where(apart, np.arange(len(leader)), leader)
    member = np.flatnonzero(leader != np.arange(len(leader)))
    if not len(member):
        return scene, times
    width = np.bincount(leader, minlength=len(leader))
    width = np.minimum(width, MOST_FUSED)
    lead = leader[member]
    open_to, protected = scene.open_to.copy(), scene.protected.copy()
    work_s, restart_s = scene.work_s.copy(), scene.restart_s.copy()
    weight, late, due_s = times.weight.copy(), times.late.copy(), times.due_s.copy()
    open_to[member], protected[member] = 0, False
    np.maximum.at(work_s, lead, scene.work_s[member])
    np.maximum.at(restart_s, lead, scene.restart_s[member])
    np.maximum.at(protected, lead, scene.protected[member])
    np.add.at(weight, lead, times.weight[member])
    np.add.at(late, lead, times.late[member])
    np.minimum.at(due_s, lead, times.due_s[member])
    merged = replace(
        scene,
        open_to=open_to,
        job_class=scene.job_class + np.where(width > 1, (width - 1) * scene.alone_classes, 0),
        work_s=work_s,
        restart_s=restart_s,
        protected=protected,
        leader=leader,
    )
    return merged, TimeValues(weight, late, due_s)


def find_families(snapshot: Snapshot, scene: Scene) -> list[Family]:
    """Return the rows that may be fused, by families of at least two."""
    queue, jobs = snapshot.queue, snapshot.jobs
    may = has_fusion_key(jobs)[queue.job] & ~queue.running & (scene.open_to > 0)
    may &= (scene.leader == np.arange(len(scene.leader))) & (scene.alone_classes < scene.classes)
    rows = np.flatnonzero(may)
    if len(rows) < 2:
        return []
    same = np.stack((jobs.fuse.codes[queue.job[rows]], scene.job_class[rows], scene.open_to[rows]))
    _, family, count = np.unique(same, axis=1, return_inverse=True, return_counts=True)
    family = family.reshape(-1)
    order = np.lexsort((scene.work_s[rows], family))
    ends = np.cumsum(count)
    parts = [rows[order[end - many : end]] for end, many in zip(ends, count, strict=True) if many > 1]
    return [Family(part, bool(jobs.always_fuse[queue.job[part]].all())) for part in parts]


def form_arrays(
    scene: Scene, times: TimeValues, families: list[Family], prices: Prices, pause: float, extra: Floats
) -> Ints:
    """Return for each row of the queue the row that leads its array, if arrays form at these *prices*.

    *extra* is the price of a joule because of budgets, by row.
    """
    leader = scene.leader.copy()
    widths = [np.arange(1, min(len(family.rows), MOST_FUSED) + 1) for family in families]
    costs = _price_widths(scene, times, families, widths, prices, pause, extra)
    at = 0
    for family, width in zip(families, widths, strict=True):
        each = costs[at : at + len(width)] / width
        at += len(width)
        gains = each < (1 - _GAIN) * each[0]
        if family.wanted:
            gains = np.isfinite(each)
        gains[0] = False
        best = int(np.argmin(np.where(gains, -width if family.wanted else each, np.inf))) + 1
        if best == 1 or not gains[best - 1]:
            continue
        for first in range(0, len(family.rows), best):
            members = family.rows[first : first + best]
            if len(members) == best or gains[len(members) - 1]:
                leader[members] = members.min()
    return leader


def _price_widths(
    scene: Scene,
    times: TimeValues,
    families: list[Family],
    widths: list[Ints],
    prices: Prices,
    pause: float,
    extra: Floats,
) -> Floats:
    """Return what an array of each width costs, family after family; inf: it does not fit."""
    width = np.concatenate(widths)
    of = np.repeat(np.arange(len(families)), [len(each) for each in widths])

    def average(column: Floats, take_least: bool = False) -> Floats:
        take = np.min if take_least else np.mean
        return np.array([take(column[family.rows]) for family in families])[of]

    lead = np.array([family.rows[0] for family in families])[of]
    code = scene.job_class[lead] + (width - 1) * scene.alone_classes
    rows = MarketRows(
        average(scene.work_s),
        width * average(times.weight),
        width * average(times.late),
        average(times.due_s, take_least=True),
        np.arange(len(code), dtype=np.int64),
    )
    guess = np.maximum(width * average(prices.value), 1e-6)
    accepts, pauses = scene.open_to[lead], np.asarray(width * pause, dtype=np.float64)
    own = np.ascontiguousarray(extra[lead])
    return compute_costs(prices, rows, scene.columns, code, accepts, scene.room, pauses, own, guess)


def compute_factors(snapshot: Snapshot, scene: Scene) -> Floats:
    """Return measured over predicted watts of each row; that of an array stands at its leader.

    What is measured of a member is its part of the array, so the parts are added up.
    """
    queue, width = snapshot.queue, count_members(scene)
    fused = queue.running & (width > 1)
    total_w = np.bincount(scene.leader, queue.watts, len(width))
    complete = np.bincount(scene.leader, queue.watts > 0, len(width)) == width
    watts = np.where(fused, np.where(complete, total_w, 0.0), queue.watts)
    shift = np.where(fused, (width - 1) * scene.alone_classes, 0)
    return compute_watts_factor(snapshot, scene.configs, watts, shift)


def replace_by_leaders(leader: Ints, rows: Ints) -> Ints:
    """Return *rows* with leaders in the place of members, each once."""
    found, first = np.unique(leader[rows], return_index=True)
    return np.ascontiguousarray(found[np.argsort(first, kind="stable")])


def count_members(scene: Scene, rows: Bools | slice = slice(None)) -> Ints:
    """Return the width of the array that each row leads; 1: it is alone."""
    return np.asarray(scene.job_class[rows] // scene.alone_classes + 1)
