"""Power that jobs and nodes draw, as budgets count it: caps of all GPUs, measured watts, boots."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from wattline.core.nodes import Nodes
from wattline.core.queue import QUEUE_LAST_CAP_W, QUEUE_LAST_GPUS, QUEUE_LAST_NODE
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.measurement.devices import find_max_cap_w
from wattline.models.configurations import Configurations


@lru_cache(maxsize=8)
def fill_default_caps(configs: Configurations, nodes: Nodes) -> Ints:
    """Return the caps of all configurations, with the largest cap of the kind of GPU in place of none."""
    classes, kinds = len(configs.gpus) // len(nodes.kind.names), nodes.kind.names
    busy_w = [float(nodes.busy_w[nodes.kind.codes == k].max(initial=0.0)) for k in range(len(kinds))]
    largest = [find_max_cap_w(kind) or watts for kind, watts in zip(kinds, busy_w, strict=True)]
    default_w = np.repeat(np.ceil(largest).astype(np.int64), classes)[:, None, None]
    return np.where(configs.cap_w > 0, configs.cap_w, default_w)


def compute_watts_factor(
    snapshot: Snapshot, configs: Configurations, watts: Floats | None = None, shift: Ints | None = None
) -> Floats:
    """Return measured over predicted watts of each row in its last configuration; 1 if never measured.

    *watts* are those of a fused array in the place of its leader's (0: not measured), and *shift* leads from
    the leader's class to that of the array.
    """
    queue = snapshot.queue
    watts = queue.watts if watts is None else watts
    factor = np.ones(len(queue))
    measured = np.flatnonzero(watts > 0)
    if not len(measured):
        return factor
    gpus, cap_w, node = queue.block[[QUEUE_LAST_GPUS, QUEUE_LAST_CAP_W, QUEUE_LAST_NODE]][:, measured].astype(
        np.int64
    )
    job_class = configs.job_class[queue.job[measured], snapshot.nodes.kind.codes[node]]
    job_class = job_class if shift is None else job_class + shift[measured]
    size = configs.gpus[job_class] == gpus[:, None]
    caps_w = fill_default_caps(configs, snapshot.nodes)[job_class, 0]
    cap = caps_w == np.where(cap_w > 0, cap_w, caps_w[:, -1])[:, None]
    known = size.any(axis=1) & cap.any(axis=1)
    predicted_w = configs.watts[job_class, np.argmax(size, axis=1), np.argmax(cap, axis=1)]
    # No upper bound: a budget must hold however far the prediction is below the measurement.
    factor[measured] = np.where(known, np.maximum(watts[measured] / predicted_w, 0.05), 1.0)
    return factor


def find_boot_costs(snapshot: Snapshot) -> tuple[Ints, Ints, Floats]:
    """Return by kind the GPUs of nodes that are up or boot, GPUs of one that is off, and its draw when on.

    The draw is what the node draws more than off. Where nodes that are off differ, each counts with the
    fewest GPUs and the most watts of any of them.
    """
    nodes, kinds, off = snapshot.nodes, len(snapshot.nodes.kind.names), snapshot.boot_done_s == math.inf
    on = np.bincount(nodes.kind.codes, nodes.gpus * (snapshot.usable & ~off), kinds).astype(np.int64)
    gpus, watts = np.full(kinds, nodes.gpus.max(), dtype=np.int64), np.zeros(kinds)
    np.minimum.at(gpus, nodes.kind.codes[off], nodes.gpus[off])
    np.maximum.at(
        watts, nodes.kind.codes[off], (np.maximum(nodes.boot_w, nodes.idle_node_w) - nodes.off_w)[off]
    )
    return on, gpus, watts
