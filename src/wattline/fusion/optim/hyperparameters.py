"""Numbers that are one for all members or one per member, as float64 vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from wattline.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """The values a hyper-parameter may have: from *low* to *high*, or up to but not *below*."""

    low: float = -math.inf
    high: float = math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and (value < self.below or self.below == math.inf)

    def __str__(self) -> str:
        parts = [f"at least {self.low:g}"] if self.low > -math.inf else []
        parts += [f"at most {self.high:g}"] if self.high < math.inf else []
        parts += [f"below {self.below:g}"] if self.below < math.inf else []
        return " and ".join(parts) or "a number"


ANY = Range()


class Mark(Enum):
    """What stands for a value that varies from member to member."""

    VARIES = "varies"


def per_member(value: Any) -> bool:
    """Whether *value* is a row of values, one per member, and not one for all."""
    if isinstance(value, Tensor):
        return value.ndim > 0
    return hasattr(value, "__len__") and not isinstance(value, str)


def joining(given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What members who join later get: their *own*, else what was *given* for all, if it was."""
    values = {**given, **own}
    if lacking := [name for name, value in values.items() if value is Mark.VARIES]:
        raise ConfigError(f"members have their own {lacking[0]}", f"say {lacking[0]}= for those who join")
    return values


def for_all(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was *given*, with a mark instead of values that vary from member to member."""
    return {name: Mark.VARIES if _varies(name, value) else value for name, value in given.items()}


def _varies(name: str, value: Any) -> bool:
    return any(map(per_member, value)) if name == "betas" else per_member(value)


def vector(name: str, value: Any, width: int, within: Range = ANY) -> Tensor:
    """The *width* numbers that *value* stands for; it is checked, and who broke the range is named."""
    many = per_member(value)
    numbers = (
        [float(number) for number in (value.tolist() if isinstance(value, Tensor) else value)] if many else []
    )
    if many and len(numbers) != width:
        raise ConfigError(f"{name} has {len(numbers)} values, expected one or {width} (one per member)")
    if not many:
        numbers = [float(value)] * width
    for member, number in enumerate(numbers):
        if number not in within:
            who = f"{name} of member {member}" if many else name
            raise ConfigError(f"{who} is {number}, expected {within}")
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def pair(name: str, value: Any, width: int, within: Range = ANY) -> tuple[Tensor, Tensor]:
    """Two vectors of *value*: a pair of numbers or rows, or a list of one pair per member.

    Where two members make both readings possible, a tuple is the pair and a list has one pair per member.
    """
    entries = list(value)
    pairs = all(per_member(entry) and len(entry) == 2 for entry in entries)
    if pairs and (isinstance(value, list) if width == 2 else len(entries) != 2):
        if len(entries) != width:
            raise ConfigError(f"{name} has {len(entries)} pairs, expected one or {width} (one per member)")
        entries = [[entry[0] for entry in entries], [entry[1] for entry in entries]]
    if len(entries) != 2:
        raise ConfigError(f"{name} has {len(entries)} values, expected a pair, or one pair per member")
    first, second = entries
    return vector(f"{name}[0]", first, width, within), vector(f"{name}[1]", second, width, within)


def chosen(values: Sequence[Any] | Tensor, rows: Sequence[int]) -> Tensor:
    """A vector of the *rows* of a vector."""
    return torch.as_tensor(values)[list(rows)].clone()
