"""Times at which nodes are drained: their jobs run on, and no other starts there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattline.core.table import Bools, Floats, Ints

DrainTimes = Sequence[tuple[int, float, float]]
"""Row of a node, and the times from and to which it is drained; inf: it stays so."""


@dataclass(frozen=True, eq=False)
class NodeDrains:
    """Recorded drains. Jobs do not know them in advance, other than maintenance."""

    node: Ints
    from_s: Floats
    to_s: Floats
    count: int  # of nodes

    @classmethod
    def of(cls, times: DrainTimes, count: int) -> NodeDrains | None:
        """Build the drains of a cluster with *count* nodes; None: there are none."""
        if not times:
            return None
        node, from_s, to_s = zip(*times, strict=True)
        return cls(np.array(node, dtype=np.int64), np.array(from_s), np.array(to_s), count)

    def as_list(self) -> list[list[float | str]]:
        """Return the drains as JSON data: node, from, to; a word for infinity."""
        rows = zip(self.node.tolist(), self.from_s.tolist(), self.to_s.tolist(), strict=True)
        return [[node, from_s, to_s if math.isfinite(to_s) else "inf"] for node, from_s, to_s in rows]

    def look(self, now_s: float) -> tuple[Bools, float]:
        """Return which nodes are drained now, and when the first of them is not any more."""
        drained = np.zeros(self.count, dtype=np.bool_)
        active = (self.from_s <= now_s) & (now_s < self.to_s)
        drained[self.node[active]] = True
        return drained, float(self.to_s[active].min(initial=math.inf))
