"""State of one number per member: step counters, and products that change with them.

The parameters of a group that have always stepped together share these vectors of [B], which are float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from wattline.fusion.optim.update import State


def separate_counters(idle: Iterable[State], busy: Iterable[State], names: Sequence[str]) -> None:
    """Give *idle* states copies of the counters that they share with *busy* ones."""
    shared = {id(own["step"]) for own in busy}
    copies: dict[int, dict[str, Tensor]] = {}
    for own in idle:
        if (key := id(own["step"])) in shared:
            copies.setdefault(key, {name: own[name].clone() for name in names})
            own.update(copies[key])


def merge_counters(states: Iterable[State], names: Sequence[str]) -> None:
    """Let states with equal counters share them, to compute less."""
    known: list[dict[str, Tensor]] = []
    for own in states:
        if "step" not in own:
            continue
        counters = {name: own[name] for name in names}
        same = next((other for other in known if _are_equal(counters, other)), counters)
        own.update(same)
        if same is counters:
            known.append(counters)


def _are_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(
        first[name].device == second[name].device and torch.equal(first[name], second[name]) for name in first
    )
