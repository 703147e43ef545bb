"""Hyper-parameters as float64 vectors: one value for all members or one per member."""

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
    """The valid values of a hyper-parameter: from *low* to *high* inclusive, and less than *below*."""

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


class Sentinel(Enum):
    """Placeholder for a value that differs between members."""

    VARIES = "varies"


def is_per_member(value: Any) -> bool:
    """Return whether *value* has one entry per member, as opposed to one value for all."""
    if isinstance(value, Tensor):
        return value.ndim > 0
    return hasattr(value, "__len__") and not isinstance(value, str)


def is_member_vector(value: Any, width: int) -> bool:
    """Return whether *value* is what `vector` returns for *width* members."""
    return isinstance(value, Tensor) and value.shape == (width,) and value.dtype == torch.float64


def merge_joining(initial: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of joining members: their *own*, else the *initial* ones for all members."""
    values = {**initial, **own}
    if missing := [name for name, value in values.items() if value is Sentinel.VARIES]:
        raise ConfigError(
            f"{missing[0]} differs between members and is missing for the joining ones",
            f"pass {missing[0]}= for the joining members",
        )
    return values


def mark_varying(initial: Mapping[str, Any]) -> dict[str, Any]:
    """Return *initial*, with a sentinel in place of values that differ between members."""
    return {name: Sentinel.VARIES if _is_varying(name, value) else value for name, value in initial.items()}


def _is_varying(name: str, value: Any) -> bool:
    return is_per_member(value) and (name != "betas" or any(map(is_per_member, value)))


def vector(name: str, value: Any, width: int, within: Range = ANY) -> Tensor:
    """Return the *width* numbers that *value* stands for; the error names the member out of range."""
    varies = is_per_member(value)
    entries = list(value.tolist() if isinstance(value, Tensor) else value) if varies else [value]
    if varies and len(entries) != width:
        raise ConfigError(f"{name} has {len(entries)} values, expected one or {width} (one per member)")
    try:
        numbers = [float(number) for number in entries] * (1 if varies else width)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is {value!r}, expected one number, or one per member") from None
    for member, number in enumerate(numbers):
        if number not in within:
            label = f"{name} of member {member}" if varies else name
            raise ConfigError(f"{label} is {number}, expected {within}")
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def pair(name: str, value: Any, width: int, within: Range = ANY) -> tuple[Tensor, Tensor]:
    """Return two vectors for *value*: a pair of numbers or rows, or a list of one pair per member.

    With two members both readings are possible: a tuple is the pair, a list has one pair per member.
    """
    if not is_per_member(value):
        raise ConfigError(f"{name} is {value!r}, expected a pair of numbers, or one pair per member")
    entries = list(value)
    pairs = all(is_per_member(entry) and len(entry) == 2 for entry in entries)
    if pairs and (isinstance(value, list) if width == 2 else len(entries) != 2):
        if len(entries) != width:
            raise ConfigError(f"{name} has {len(entries)} pairs, expected one or {width} (one per member)")
        entries = [[entry[0] for entry in entries], [entry[1] for entry in entries]]
    if len(entries) != 2:
        raise ConfigError(f"{name} has {len(entries)} values, expected a pair, or one pair per member")
    first, second = entries
    return vector(f"{name}[0]", first, width, within), vector(f"{name}[1]", second, width, within)


def select_rows(values: Sequence[Any] | Tensor, rows: Sequence[int]) -> Tensor:
    """Return a copy of the *rows* of a vector."""
    return torch.as_tensor(values)[list(rows)].clone()
