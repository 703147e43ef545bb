"""Where the joules went, and how they are known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wattline.core.events import ARRIVED, ENDS, METERED
from wattline.loop.runlog import Log
from wattline.reports.data.lease_intervals import Spans
from wattline.reports.data.node_states import BOOTING, OFF, UP, Turns, seconds, stretches

MODELLED = "modelled from a workload's own watts where its model is known, else from those of its GPU kind"
UNMETERED = "unmetered"


@dataclass(frozen=True)
class Energy:
    """Joules of a run by what they were spent on; nan where nobody can tell."""

    method: str
    total_j: float = math.nan
    lease_j: float = math.nan  # GPUs that were held
    idle_gpu_j: float = math.nan  # GPUs that nobody held, on nodes that were up
    base_j: float = math.nan  # nodes that were up, without their GPUs
    boot_j: float = math.nan  # nodes that were booting
    off_j: float = math.nan  # nodes that were switched off


def energy(log: Log, held: Spans, turned: Turns) -> Energy:
    """What the cluster used from the first arrival to the last reading.

    A simulated cluster's joules are split by its own watts. On real machines only what was read is
    told: the total, and what leases reported when they ended.
    """
    verb, who, at_s = log.events[:, 0], log.events[:, 1], log.events[:, 2]
    readings = np.flatnonzero((verb == METERED) & (who < 0))  # others are of teams
    if not len(readings):
        return Energy(UNMETERED)
    total_j, until_s = float(log.events[readings[-1], 5]), float(at_s[readings[-1]])
    lease_j = float(log.events[np.isin(verb, ENDS), 5].sum())
    backend = str(log.header.get("backend", ""))
    method = str(log.header.get("energy_method", ""))
    if backend != "sim":
        return Energy(method or f"read by the {backend} backend", total_j, lease_j)
    nodes, leads = log.nodes, held.leads
    held_gpu_s = np.bincount(
        held.node[leads], (held.gpus * (held.end_s - held.start_s))[leads], minlength=len(nodes)
    )
    since_s = float(at_s[verb == ARRIVED].min(initial=until_s))
    spent_s = seconds(stretches(turned, len(nodes), since_s, until_s), len(nodes))
    return Energy(
        method=method or MODELLED,
        total_j=total_j,
        lease_j=lease_j,
        idle_gpu_j=float((spent_s[UP] * nodes.gpus - held_gpu_s) @ nodes.idle_w),
        base_j=float(spent_s[UP] @ nodes.base_w),
        boot_j=float(spent_s[BOOTING] @ nodes.boot_w),
        off_j=float(spent_s[OFF] @ nodes.off_w),
    )
