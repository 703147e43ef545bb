"""Where the joules went, and how they are known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wattline.log import Log
from wattline.messages import ARRIVED, ENDS, METERED, NODE_BACK, NODE_LOST
from wattline.report.spans import Spans
from wattline.table import Floats

MODELLED = "modelled from node, idle and busy watts per GPU kind"
UNMETERED = "unmetered"


@dataclass(frozen=True)
class Energy:
    """Joules of a run by what they were spent on; nan where nobody can tell."""

    total_j: float
    lease_j: float  # GPUs that were held
    idle_gpu_j: float  # GPUs that nobody held, on nodes that were up
    base_j: float  # nodes without their GPUs
    method: str


def energy(log: Log, held: Spans) -> Energy:
    """What the cluster used from the first arrival to the last reading.

    A simulated cluster's joules are split by its own watts. On real machines only what was read is
    told: the total, and what leases reported when they ended.
    """
    readings = log.events[log.events[:, 0] == METERED]
    if not len(readings):
        return Energy(math.nan, math.nan, math.nan, math.nan, UNMETERED)
    total_j, until_s = float(readings[-1, 5]), float(readings[-1, 2])
    backend = str(log.header.get("backend", ""))
    method = str(log.header.get("energy_method", ""))
    if backend != "sim":
        reported_j = float(log.events[np.isin(log.events[:, 0], ENDS), 5].sum())
        return Energy(total_j, reported_j, math.nan, math.nan, method or f"read by the {backend} backend")
    nodes, leads = log.nodes, held.leads
    held_gpu_s = np.bincount(
        held.node[leads], (held.gpus * (held.end_s - held.start_s))[leads], minlength=len(nodes)
    )
    up_s = _up_s(log, until_s)
    return Energy(
        total_j=total_j,
        lease_j=float(log.events[np.isin(log.events[:, 0], ENDS), 5].sum()),
        idle_gpu_j=float((up_s * nodes.gpus - held_gpu_s) @ nodes.idle_w),
        base_j=float(up_s @ nodes.base_w),
        method=method or MODELLED,
    )


def _up_s(log: Log, until_s: float) -> Floats:
    """Seconds each node was up between the first arrival and *until_s*."""
    verb, who, at_s = log.events[:, 0], log.events[:, 1], log.events[:, 2]
    arrivals_s = at_s[verb == ARRIVED]
    since_s = float(arrivals_s.min()) if len(arrivals_s) else until_s
    turns = (verb == NODE_LOST) | (verb == NODE_BACK)
    rest_s = until_s - np.clip(at_s[turns], since_s, until_s)
    change_s = np.where(verb[turns] == NODE_BACK, rest_s, -rest_s)
    up_s = np.bincount(who[turns].astype(np.int64), change_s, minlength=len(log.nodes))
    return np.asarray(until_s - since_s + up_s)
