"""Power and energy of a simulated cluster."""

from __future__ import annotations

import math

from wattline.core.nodes import Nodes
from wattline.core.table import Floats

_DOWN, _UP, _OFF, _BOOTING = range(4)


class PowerDraw:
    """Energy of a simulated cluster: nodes and idle GPUs always, plus what jobs draw above idle.

    A failed node draws nothing.
    """

    def __init__(self, nodes: Nodes, start_s: float) -> None:
        self._idle_w: list[float] = nodes.idle_w.tolist()  # one GPU, by node
        self._busy_w: list[float] = nodes.busy_w.tolist()
        # Where all nodes draw the same, a lease on hundreds of nodes needs no sum over them.
        self._uniform = len(set(self._busy_w)) == len(set(self._idle_w)) == 1
        self._draws_w: tuple[list[float], ...] = (
            [0.0] * len(nodes),
            _list(nodes.idle_node_w),
            _list(nodes.off_w),
            _list(nodes.boot_w),
        )
        self._state = [_UP] * len(nodes)
        self._since_s = start_s
        self._idle_cluster_w = sum(self._draws_w[_UP])
        self.energy_j = 0.0

    def compute_watts(
        self, nodes: list[int], gpus: list[int], gpu_w: float, cap_w: int
    ) -> tuple[float, float]:
        """Return the power of GPUs while they train, and without a job.

        A training GPU draws *gpu_w*; if that is nan, its usual power up to the cap.
        """
        total, most_w = sum(gpus), cap_w or math.inf
        if len(nodes) == 1 or self._uniform:
            idle_w = total * self._idle_w[nodes[0]]
            busy_w = total * min(self._busy_w[nodes[0]], most_w)
        else:
            leases = list(zip(nodes, gpus, strict=True))
            idle_w = sum(count * self._idle_w[node] for node, count in leases)
            busy_w = sum(count * min(self._busy_w[node], most_w) for node, count in leases)
        return (total * gpu_w if gpu_w == gpu_w else busy_w), idle_w

    def set_up(self, node: int, now_s: float) -> None:
        """Record that a node is up."""
        self._set_state(node, _UP, now_s)

    def set_down(self, node: int, now_s: float) -> None:
        """Record that a node failed."""
        self._set_state(node, _DOWN, now_s)

    def set_off(self, node: int, now_s: float) -> None:
        """Record that a node is switched off."""
        self._set_state(node, _OFF, now_s)

    def set_booting(self, node: int, now_s: float) -> None:
        """Record that a node is switched on and boots."""
        self._set_state(node, _BOOTING, now_s)

    def is_off(self, node: int) -> bool:
        """Return whether a node was switched off and is not up again."""
        return self._state[node] in (_OFF, _BOOTING)

    def _set_state(self, node: int, state: int, now_s: float) -> None:
        self.count_energy(now_s)
        self._state[node] = state
        # A fresh sum and not a running total, so that rounding errors do not accumulate.
        self._idle_cluster_w = sum(self._draws_w[now][n] for n, now in enumerate(self._state))

    def count_energy(self, now_s: float) -> None:
        """Count the energy of the cluster without jobs until *now_s*."""
        if now_s > self._since_s:
            self.energy_j += self._idle_cluster_w * (now_s - self._since_s)
            self._since_s = now_s


def _list(column: Floats) -> list[float]:
    values: list[float] = column.tolist()
    return values
