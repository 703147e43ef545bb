"""Where hyper-parameters may lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattline.errors import ConfigError

Fixed = float | int | str | bool | None


@dataclass(frozen=True)
class Float:
    """A number from *low* to *high*; with *log*, each power of ten is as likely as the next."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _check_ends(self)

    def draw(self, chance: np.random.Generator) -> float:
        """A value at random."""
        if self.log:
            value = math.exp(chance.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = float(chance.uniform(self.low, self.high))
        return min(max(value, float(self.low)), float(self.high))


@dataclass(frozen=True)
class Int:
    """A whole number from *low* to *high*, both included; with *log*, small ones are as likely as large."""

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            if not isinstance(end, int) or isinstance(end, bool):
                raise ConfigError(f"{self} has the end {end!r}, expected a whole number")
        _check_ends(self)

    def draw(self, chance: np.random.Generator) -> int:
        """A value at random."""
        if not self.log:
            return int(chance.integers(self.low, self.high, endpoint=True))
        value = math.exp(chance.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5)))
        return min(max(round(value), self.low), self.high)


@dataclass(frozen=True)
class Choice:
    """One of some values, all as likely."""

    values: tuple[Any, ...]

    def __init__(self, values: Sequence[Any]) -> None:
        object.__setattr__(self, "values", tuple(values))
        if not self.values:
            raise ConfigError("Choice has no values, expected at least one")

    def draw(self, chance: np.random.Generator) -> Any:
        """A value at random."""
        return self.values[int(chance.integers(len(self.values)))]


Domain = Float | Int | Choice
Space = Mapping[str, Domain | Fixed]
Config = dict[str, Any]


def check_space(space: Space) -> None:
    """`ConfigError` unless every name has a domain or a fixed value, and something is to be tuned."""
    for name, domain in space.items():
        if not isinstance(domain, Float | Int | Choice | float | int | str | None):
            raise ConfigError(
                f"{name} is {domain!r} in the space, expected Float, Int, Choice or a fixed value",
                "a list of values is a Choice" if isinstance(domain, list | tuple) else "",
            )
    if not any(isinstance(domain, Float | Int | Choice) for domain in space.values()):
        raise ConfigError("the space is empty, expected at least one Float, Int or Choice")


def draw(space: Space, seed: int, number: int) -> Config:
    """The configuration of one trial, whatever others there are."""
    chance = np.random.default_rng([seed, number])
    return {
        name: domain.draw(chance) if isinstance(domain, Float | Int | Choice) else domain
        for name, domain in space.items()
    }


def _check_ends(domain: Float | Int) -> None:
    if not (math.isfinite(domain.low) and math.isfinite(domain.high)):
        raise ConfigError(f"{domain} is not finite, expected two numbers")
    if domain.low > domain.high:
        raise ConfigError(f"{domain} has low={domain.low} above high={domain.high}, expected low <= high")
    if domain.log and domain.low <= 0:
        raise ConfigError(f"{domain} is logarithmic from low={domain.low}, expected low > 0")
