"""Times at which simulated nodes are down: random failures with repair, and recorded outages."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappush

import numpy as np

from wattline.backend.sim.faults import Faults
from wattline.core.table import Floats

FAILURE, OUTAGE_BEGIN, OUTAGE_END = 0, -2, -1
"""Codes of node events in the simulator's heap; an outage that begins sorts before one that ends."""

LOST, UNCHANGED, BACK = -1, 0, 1
"""What an event makes of a node."""

NodeHeap = list[tuple[float, int, int]]
"""The simulator's heap of (time, -1 - node, code)."""


class NodeFaults:
    """State of nodes under *faults*; pushes its events to *heap*.

    A failure that falls into an outage does not happen; the schedule continues at the outage's end.
    """

    def __init__(
        self,
        faults: Faults,
        count: int,
        seed: int,
        heap: NodeHeap,
        boundary: Callable[[np.float64], Floats],
        first_s: float,
    ) -> None:
        self._faults = faults
        self._heap = heap
        self._boundary = boundary
        self._rng = [np.random.default_rng((seed, node)) for node in range(count)]
        self._up = [True] * count
        self._repaired: set[int] = set()  # nodes under repair after a random failure
        self._out_until_s: dict[int, float] = {}  # nodes in an outage
        self._missed_failure_s: dict[int, float] = {}  # failures that fell into a time when the node was off
        if math.isfinite(faults.node_mtbf_s):
            for node in range(count):
                self._schedule_failure(node, first_s)
        self._ends_s: dict[int, list[float]] = {}
        for node, down_s, up_s in self._join_outages(first_s):
            heappush(heap, (down_s, -1 - node, OUTAGE_BEGIN))
            self._ends_s.setdefault(node, []).append(up_s)

    def _join_outages(self, first_s: float) -> list[tuple[int, float, float]]:
        """Return the outages by node and time, those that touch joined into one, none before *first_s*."""
        joined: list[tuple[int, float, float]] = []
        for node, down_s, up_s in sorted(self._faults.outages):
            down_s = self._round_up(max(down_s, first_s))
            up_s = up_s if math.isinf(up_s) else self._round_up(up_s)
            if joined and joined[-1][0] == node and down_s <= joined[-1][2]:
                node, down_s, before_s = joined.pop()
                up_s = max(before_s, up_s)
            if up_s > down_s:
                joined.append((node, down_s, up_s))
        return joined

    def _round_up(self, at_s: float) -> float:
        return float(self._boundary(np.float64(at_s)))

    def change(self, node: int, code: int, now_s: float, is_off: bool) -> int:
        """Handle an event of a node; *is_off*: the policy has switched it off."""
        if code == OUTAGE_BEGIN:
            return self._begin_outage(node, is_off)
        if code == OUTAGE_END:
            del self._out_until_s[node]
            return UNCHANGED if is_off or node in self._repaired else self._bring_back(node)
        if node in self._out_until_s:
            self._repaired.discard(node)
            self._schedule_failure(node, now_s, self._out_until_s[node])
            return UNCHANGED
        if is_off:
            # The schedule of failures continues from here when the node is up again.
            self._missed_failure_s[node] = now_s
            return UNCHANGED
        if node in self._repaired:
            self._repaired.discard(node)
            self._schedule_failure(node, now_s)
            return self._bring_back(node)
        self._repaired.add(node)
        heappush(self._heap, (self._round_up(now_s + self._faults.node_repair_s), -1 - node, FAILURE))
        return self._lose(node)

    def boot(self, node: int, now_s: float) -> int:
        """Handle a node that has booted: it may be in an outage."""
        if node in self._missed_failure_s:
            self._schedule_failure(node, self._missed_failure_s.pop(node), now_s)
        return self._lose(node) if node in self._out_until_s else UNCHANGED

    def _begin_outage(self, node: int, is_off: bool) -> int:
        up_s = self._out_until_s[node] = self._ends_s[node].pop(0)
        if math.isfinite(up_s):
            heappush(self._heap, (up_s, -1 - node, OUTAGE_END))
        return UNCHANGED if is_off else self._lose(node)

    def _lose(self, node: int) -> int:
        if not self._up[node]:
            return UNCHANGED
        self._up[node] = False
        return LOST

    def _bring_back(self, node: int) -> int:
        if self._up[node]:
            return UNCHANGED
        self._up[node] = True
        return BACK

    def _schedule_failure(self, node: int, last_s: float, from_s: float = -math.inf) -> None:
        """Schedule the next failure of a node after the one at *last_s*, but not before *from_s*."""
        if math.isinf(from_s) and from_s > 0:
            return
        while True:
            last_s = self._round_up(last_s + self._rng[node].exponential(self._faults.node_mtbf_s))
            if last_s >= from_s:
                break
        heappush(self._heap, (last_s, -1 - node, FAILURE))
