"""Search spaces of hyper-parameters."""

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
    """A number from *low* to *high*; with *log*, uniform on a logarithmic scale."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _check_bounds(self)

    def draw(self, rng: np.random.Generator) -> float:
        """Return a random value."""
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = float(rng.uniform(self.low, self.high))
        return min(max(value, float(self.low)), float(self.high))


@dataclass(frozen=True)
class Int:
    """A whole number from *low* to *high*, both included; with *log*, uniform on a logarithmic scale."""

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        for bound in (self.low, self.high):
            if not isinstance(bound, int) or isinstance(bound, bool):
                raise ConfigError(f"{self} has the bound {bound!r}, expected a whole number")
        _check_bounds(self)

    def draw(self, rng: np.random.Generator) -> int:
        """Return a random value."""
        if not self.log:
            return int(rng.integers(self.low, self.high, endpoint=True))
        value = math.exp(rng.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5)))
        return min(max(round(value), self.low), self.high)


@dataclass(frozen=True)
class Choice:
    """One of some values with equal probability."""

    values: tuple[Any, ...]

    def __init__(self, values: Sequence[Any]) -> None:
        object.__setattr__(self, "values", tuple(values))
        if not self.values:
            raise ConfigError("Choice has no values, expected at least one")

    def draw(self, rng: np.random.Generator) -> Any:
        """Return a random value."""
        return self.values[int(rng.integers(len(self.values)))]


Domain = Float | Int | Choice
Space = Mapping[str, Domain | Fixed]
Config = dict[str, Any]


def check_space(space: Space) -> None:
    """Raise `ConfigError` unless every name has a domain or a fixed value, and at least one a domain."""
    for name, domain in space.items():
        if not isinstance(domain, Float | Int | Choice | float | int | str | None):
            raise ConfigError(
                f"{name} is {domain!r} in the space, expected Float, Int, Choice or a fixed value",
                "a list of values is a Choice" if isinstance(domain, list | tuple) else "",
            )
    if not any(isinstance(domain, Float | Int | Choice) for domain in space.values()):
        raise ConfigError("the space is empty, expected at least one Float, Int or Choice")


def draw_config(space: Space, seed: int, number: int) -> Config:
    """Return the configuration of one trial, which depends only on *seed* and *number*."""
    rng = np.random.default_rng([seed, number])
    return {
        name: domain.draw(rng) if isinstance(domain, Float | Int | Choice) else domain
        for name, domain in space.items()
    }


def _check_bounds(domain: Float | Int) -> None:
    if not (math.isfinite(domain.low) and math.isfinite(domain.high)):
        raise ConfigError(f"{domain} is not finite, expected two numbers")
    if domain.low > domain.high:
        raise ConfigError(f"{domain} has low={domain.low} above high={domain.high}, expected low <= high")
    if domain.log and domain.low <= 0:
        raise ConfigError(f"{domain} is logarithmic from low={domain.low}, expected low > 0")
