"""What the cluster draws: exact, because GPUs are counted and only then multiplied by watts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattline.types import Nodes


class Power:
    """Watts now and joules so far of a simulated cluster; a node that is down draws nothing."""

    def __init__(self, nodes: Nodes, start_s: float) -> None:
        rates = np.column_stack((nodes.base_w, nodes.idle_w, nodes.busy_w))
        kinds, kind_of = np.unique(rates, axis=0, return_inverse=True)
        self._kind: list[int] = kind_of.ravel().tolist()
        self._rates: list[list[float]] = kinds.tolist()
        self._gpus: list[int] = nodes.gpus.tolist()
        self._up = [0] * len(self._rates)  # nodes, by kind
        self._up_gpus = [0] * len(self._rates)
        self._busy = [0] * len(self._rates)
        for kind, gpus in zip(self._kind, self._gpus, strict=True):
            self._up[kind] += 1
            self._up_gpus[kind] += gpus
        self._since_s = start_s
        self.energy_j = 0.0
        self.now_w = 0.0
        self._update()

    def watts(self, nodes: Sequence[int], gpus: Sequence[int]) -> float:
        """What GPUs at work draw."""
        watts = 0.0
        for node, count in zip(nodes, gpus, strict=True):
            watts += count * self._rates[self._kind[node]][2]
        return watts

    def hold(self, nodes: Sequence[int], gpus: Sequence[int], now_s: float) -> None:
        """GPUs begin to work."""
        self._change(nodes, gpus, now_s, 1)

    def release(self, nodes: Sequence[int], gpus: Sequence[int], now_s: float) -> None:
        """GPUs stop working."""
        self._change(nodes, gpus, now_s, -1)

    def switch(self, node: int, up: bool, now_s: float) -> None:
        """A node goes up or down."""
        self.integrate(now_s)
        self._up[self._kind[node]] += 1 if up else -1
        self._up_gpus[self._kind[node]] += self._gpus[node] if up else -self._gpus[node]
        self._update()

    def integrate(self, now_s: float) -> None:
        """Count the joules until *now_s*."""
        if now_s > self._since_s:
            self.energy_j += self.now_w * (now_s - self._since_s)
            self._since_s = now_s

    def _change(self, nodes: Sequence[int], gpus: Sequence[int], now_s: float, sign: int) -> None:
        self.integrate(now_s)
        busy, kind = self._busy, self._kind
        for node, count in zip(nodes, gpus, strict=True):
            busy[kind[node]] += sign * count
        self._update()

    def _update(self) -> None:
        watts = 0.0
        counts = zip(self._rates, self._up, self._up_gpus, self._busy, strict=True)
        for (base_w, idle_w, busy_w), up, gpus, busy in counts:
            watts += up * base_w + (gpus - busy) * idle_w + busy * busy_w
        self.now_w = watts
