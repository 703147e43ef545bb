"""Energy of a run by consumer, and the method by which it is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wattline.core.events import (
    ARRIVED,
    EVENT_AT_S,
    EVENT_ENERGY_J,
    EVENT_JOB,
    EVENT_VERB,
    LEASE_END_EVENTS,
    METERED,
)
from wattline.loop.runlog import Log
from wattline.reports.data.lease_intervals import LeaseIntervals
from wattline.reports.data.node_states import (
    BOOTING,
    OFF,
    UP,
    NodeStateChanges,
    build_state_intervals,
    sum_state_seconds,
)

MODELLED = "modelled from a workload's own watts where its model is known, else from those of its GPU kind"
UNMETERED = "unmetered"


@dataclass(frozen=True)
class EnergyBreakdown:
    """Joules of a run by consumer; nan = unknown."""

    method: str
    total_j: float = math.nan
    lease_j: float = math.nan  # GPUs that were leased
    idle_gpu_j: float = math.nan  # GPUs without a lease, on nodes that were up
    base_j: float = math.nan  # nodes that were up, without their GPUs
    boot_j: float = math.nan  # nodes that were booting
    off_j: float = math.nan  # nodes that were switched off


def break_down_energy(log: Log, intervals: LeaseIntervals, changes: NodeStateChanges) -> EnergyBreakdown:
    """Return the energy that the cluster used from the first arrival to the last meter reading.

    A simulated cluster's joules are split by its own watts. On real machines only meter readings
    count: the total, and the energy of leases as reported when they ended.
    """
    verb, subject = log.events[:, EVENT_VERB], log.events[:, EVENT_JOB]
    at_s, energy_j = log.events[:, EVENT_AT_S], log.events[:, EVENT_ENERGY_J]
    readings = np.flatnonzero((verb == METERED) & (subject < 0))  # readings of teams have subject >= 0
    if not len(readings):
        return EnergyBreakdown(UNMETERED)
    total_j, until_s = float(energy_j[readings[-1]]), float(at_s[readings[-1]])
    lease_j = float(energy_j[np.isin(verb, LEASE_END_EVENTS)].sum())
    backend = str(log.header.get("backend", ""))
    method = str(log.header.get("energy_method", ""))
    if backend != "sim":
        return EnergyBreakdown(method or f"read by the {backend} backend", total_j, lease_j)
    nodes, leader = log.nodes, intervals.is_leader
    held_gpu_s = np.bincount(
        intervals.node[leader],
        (intervals.gpus * (intervals.end_s - intervals.start_s))[leader],
        minlength=len(nodes),
    )
    since_s = float(at_s[verb == ARRIVED].min(initial=until_s))
    spent_s = sum_state_seconds(build_state_intervals(changes, len(nodes), since_s, until_s), len(nodes))
    return EnergyBreakdown(
        method=method or MODELLED,
        total_j=total_j,
        lease_j=lease_j,
        idle_gpu_j=float((spent_s[UP] * nodes.gpus - held_gpu_s) @ nodes.idle_w),
        base_j=float(spent_s[UP] @ nodes.base_w),
        boot_j=float(spent_s[BOOTING] @ nodes.boot_w),
        off_j=float(spent_s[OFF] @ nodes.off_w),
    )
