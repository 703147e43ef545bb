"""Numbers of nodes that jobs held, from the number or the list of names in their records."""

from __future__ import annotations

import re

import numpy as np

from wattline.core.table import Ints
from wattline.trace.recorded import RecordedSchedule


def count_recorded_nodes(recorded: RecordedSchedule) -> Ints:
    """Return the number of nodes of each job; 0: unknown."""
    counts = [count_nodes(text) for text in recorded.nodes.names]
    return np.array([int(count or 0) for count in counts], dtype=np.int64)[recorded.nodes.codes]


def count_nodes(text: str) -> str:
    """Return the number of nodes in a list such as `n[1-3,7],m1`; a number stays as it is.

    Empty: unknown, as of a list that is cut off.
    """
    if text.isdecimal() or not text:
        return text
    if text.endswith("+") or text.count("[") != text.count("]"):
        return ""
    total = 0
    for name in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)?", text):
        inside = re.search(r"\[([^\]]*)\]", name)
        total += sum(map(_count_range, inside[1].split(","))) if inside else 1
    return str(total) if total else ""


def _count_range(text: str) -> int:
    low, dash, high = text.partition("-")
    if not dash or not (low.isdecimal() and high.isdecimal()):
        return 1
    return max(int(high) - int(low) + 1, 1)
