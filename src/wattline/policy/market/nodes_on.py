"""Number of nodes that are on: a whole node is paid for, however few of its GPUs are used.

At first every GPU pays its share of its node. That is too little for the last node, which may serve a single
GPU. So the number of nodes of each kind is varied: with m nodes on, their GPUs cost only the watts above
idle, and the decision is worth what its jobs are worth less m times the price of a node. Jobs on nodes that
are half used are moved together where a node that is off saves more than their restarts cost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.nodes import Nodes
from wattline.core.table import Floats, Ints
from wattline.policy.market.rounding import NEVER, NowRows, allocate
from wattline.policy.market.scene import Scene

_OFF_S = 300.0  # that an emptied node is off at least; 100 to 3,600 s hardly differ
_TRIES = 8  # changes of the number of nodes, of each kind and in each direction


class NodeAllocation(NamedTuple):
    """Kind and size of each row (-1: none), what they are worth, and the worths that decided it."""

    kind: Ints
    size: Ints
    total: float
    worth: Floats
    on: Ints  # GPUs by kind that may be used


def choose_nodes(
    scene: Scene,
    nodes: Nodes,
    now: NowRows,
    first: Ints,
    worth: Floats,
    none: Floats,
    gpu_price: Floats,
    per_w: float,
    node_price: float,
    keeps_busy: bool,
) -> NodeAllocation:
    """Return the best allocation over the number of nodes that are on.

    *per_w* is the price of a watt, and *node_price* that of one of a node, 0 if they stay on. If it
    *keeps_busy*, at least one is: a job that is alone pays for its node sooner or later.
    """
    if per_w > 0 and scene.kinds > 1:
        worth = _keep_best_kind(scene, worth, gpu_price)
    free = leave_out_nodes(scene, worth, now.watt_price) if per_w > 0 else worth
    if node_price <= 0:
        kind, size, total = allocate(first, now, scene.sizes, scene.room, free, none, gpu_price)
        return NodeAllocation(kind, size, total, free, scene.room)
    kind, size, _ = allocate(first, now, scene.sizes, scene.room, worth, none, gpu_price)
    kinds = scene.kinds
    node_gpus, node_w = np.ones(kinds, dtype=np.int64), np.zeros(kinds)
    np.maximum.at(node_gpus, nodes.kind.codes, nodes.gpus)
    np.maximum.at(node_w, nodes.kind.codes, nodes.idle_node_w - nodes.off_w)
    taken = np.bincount(np.maximum(kind, 0), scene.count_gpus(kind, size), kinds).astype(np.int64)
    most = -(-scene.room // node_gpus)

    def evaluate(count: Ints) -> tuple[float, NodeAllocation]:
        on = np.minimum(scene.room, count * node_gpus)
        kind, size, total = allocate(first, now, scene.sizes, on, free, none, gpu_price)
        return total - node_price * float(count @ node_w), NodeAllocation(kind, size, total, free, on)

    count = -(-taken // node_gpus)
    if not count.any() and keeps_busy:
        units = [row for row in np.eye(kinds, dtype=np.int64) if (row <= most).all()]
        tried = [(evaluate(row), row) for row in units]
        runs = [(found[0], -at) for at, (found, _) in enumerate(tried) if (found[1].kind >= 0).any()]
        if runs:
            count = tried[-max(runs)[1]][1]
    value, best = evaluate(count)
    for k in range(kinds):
        for step in (-1, 1):
            for _ in range(_TRIES):
                other = count.copy()
                other[k] += step
                if not 0 <= other[k] <= most[k] or (keeps_busy and not other.any()):
                    break
                other_value, found = evaluate(other)
                if other_value <= value * (1 + 1e-9) if value > 0 else other_value <= value:
                    break
                count, value, best = other, other_value, found
    return best


def compute_move_costs(
    nodes: Nodes, scene: Scene, now: NowRows, per_w: float, kind: Ints, size: Ints, cap: Ints
) -> Floats | None:
    """Return what moving each row costs, in parts of what a node saves that is off for `_OFF_S`.

    None: the watts of nodes have no price.
    """
    if per_w <= 0:
        return None
    node_w = np.full(scene.kinds, 1e-9)
    np.maximum.at(node_w, nodes.kind.codes, nodes.idle_node_w - nodes.off_w)
    speed = scene.configs.speed[scene.find_class(kind), np.maximum(size, 0), np.maximum(cap, 0)]
    speed = np.where(kind >= 0, speed, 0.0)  # a cap that there is not has none
    lost = now.work_value * speed * scene.restart_s / (per_w * node_w[np.maximum(kind, 0)] * _OFF_S)
    return np.where(scene.protected, np.inf, lost)


def leave_out_nodes(scene: Scene, worth: Floats, watt_price: Floats) -> Floats:
    """Return *worth* by row, kind and size without the draw of nodes and of their idle GPUs."""
    configs = scene.configs
    by_kind = scene.job_class[:, None] + np.arange(scene.kinds) * scene.classes
    sunk_w = (configs.static_w + configs.idle_w)[by_kind][..., None] * configs.gpus[by_kind]
    return np.where(worth > NEVER, worth + watt_price[:, None, None] * sunk_w, NEVER)


def _keep_best_kind(scene: Scene, worth: Floats, gpu_price: Floats) -> Floats:
    """Return *worth* with nothing but the kind that is best for each row at these prices.

    Where energy costs something, a second choice that is free now is often dearer than a short wait.
    """
    by_kind = scene.job_class[:, None] + np.arange(scene.kinds) * scene.classes
    paid = gpu_price[None, :, None] * scene.configs.gpus[by_kind]
    best = np.where(worth > NEVER, worth - paid, NEVER).max(axis=2).argmax(axis=1)
    return np.where((np.arange(scene.kinds) == best[:, None])[..., None], worth, NEVER)
