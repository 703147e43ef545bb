"""What the cluster draws: nodes and idle GPUs all the time, more where somebody trains."""

from __future__ import annotations

import math

from wattline.core.nodes import Nodes
from wattline.core.table import Floats

_DOWN, _UP, _OFF, _BOOTING = range(4)


class Power:
    """Joules of a simulated cluster; a node that is broken draws nothing."""

    def __init__(self, nodes: Nodes, start_s: float) -> None:
        self._idle_w: list[float] = nodes.idle_w.tolist()  # one GPU, by node
        self._busy_w: list[float] = nodes.busy_w.tolist()
        self._draws_w: tuple[list[float], ...] = (
            [0.0] * len(nodes),
            _list(nodes.rest_w),
            _list(nodes.off_w),
            _list(nodes.boot_w),
        )
        self._state = [_UP] * len(nodes)
        self._since_s = start_s
        self._resting_w = sum(self._draws_w[_UP])
        self.energy_j = 0.0

    def busy_w(self, nodes: list[int], gpus: list[int], gpu_w: float, cap_w: int) -> float:
        """What GPUs that train draw: *gpu_w* each, or if that is nan the usual, as far as the cap allows."""
        if gpu_w == gpu_w:
            return sum(gpus) * gpu_w
        most_w = cap_w or math.inf
        if len(nodes) == 1:
            return gpus[0] * min(self._busy_w[nodes[0]], most_w)
        return sum(count * min(self._busy_w[node], most_w) for node, count in zip(nodes, gpus, strict=True))

    def idle_w(self, nodes: list[int], gpus: list[int]) -> float:
        """What these GPUs draw when nobody holds them."""
        if len(nodes) == 1:
            return gpus[0] * self._idle_w[nodes[0]]
        return sum(count * self._idle_w[node] for node, count in zip(nodes, gpus, strict=True))

    def back(self, node: int, now_s: float) -> None:
        """A node is up."""
        self._switch(node, _UP, now_s)

    def down(self, node: int, now_s: float) -> None:
        """A node broke."""
        self._switch(node, _DOWN, now_s)

    def off(self, node: int, now_s: float) -> None:
        """A node is switched off."""
        self._switch(node, _OFF, now_s)

    def boot(self, node: int, now_s: float) -> None:
        """A node is switched on, and not yet up."""
        self._switch(node, _BOOTING, now_s)

    def is_off(self, node: int) -> bool:
        """Whether a node was switched off and is not up again."""
        return self._state[node] in (_OFF, _BOOTING)

    def _switch(self, node: int, state: int, now_s: float) -> None:
        self.rest(now_s)
        self._state[node] = state
        # A sum, not a running total: what comes and goes must leave no rounding behind.
        self._resting_w = sum(self._draws_w[now][n] for n, now in enumerate(self._state))

    def rest(self, now_s: float) -> None:
        """Count what the cluster draws without any job, until *now_s*."""
        if now_s > self._since_s:
            self.energy_j += self._resting_w * (now_s - self._since_s)
            self._since_s = now_s


def _list(column: Floats) -> list[float]:
    values: list[float] = column.tolist()
    return values
