"""What the cluster draws: nodes and idle GPUs all the time, more where somebody trains."""

from __future__ import annotations

from collections.abc import Sequence

from wattline.types import Nodes


class Power:
    """Joules of a simulated cluster; a node that is down draws nothing."""

    def __init__(self, nodes: Nodes, start_s: float) -> None:
        self._busy_w: list[float] = nodes.busy_w.tolist()  # one GPU, by node
        self._more_w: list[float] = (nodes.busy_w - nodes.idle_w).tolist()
        self._rest_w: list[float] = (nodes.base_w + nodes.gpus * nodes.idle_w).tolist()
        self._up = [True] * len(nodes)
        self._since_s = start_s
        self._resting_w = sum(self._rest_w)
        self.energy_j = 0.0

    def watts(self, nodes: Sequence[int], gpus: Sequence[int]) -> tuple[float, float]:
        """What GPUs at work draw, and by how much that is more than idle."""
        busy_w = more_w = 0.0
        for node, count in zip(nodes, gpus, strict=True):
            busy_w += count * self._busy_w[node]
            more_w += count * self._more_w[node]
        return busy_w, more_w

    def switch(self, node: int, up: bool, now_s: float) -> None:
        """A node goes up or down."""
        self.rest(now_s)
        self._up[node] = up
        self._resting_w = sum(w for w, is_up in zip(self._rest_w, self._up, strict=True) if is_up)

    def rest(self, now_s: float) -> None:
        """Count what the cluster draws without any job, until *now_s*."""
        if now_s > self._since_s:
            self.energy_j += self._resting_w * (now_s - self._since_s)
            self._since_s = now_s
