"""Quotas and shares of users and teams."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from wattline.errors import ConfigError

WEEK_S = 604_800.0
"""Length of the window that weekly GPU hours are counted in: the last seven days, not a calendar week."""

_FIELDS = ("gpus", "gpu_hours_per_week", "share")
_FORM = "team:vision:gpus=8,gpu_hours_per_week=500,share=2 or user:ann:gpus=4"
_NAME = re.compile(r"[^\s:,=]+")


@dataclass(frozen=True)
class QuotaRule:
    """Quota and share of one user or team; None: unset."""

    owner: str  # "user" or "team"
    name: str
    gpus: int | None = None  # held at once, by all its jobs
    gpu_hours_per_week: float | None = None  # in the last seven days
    share: float | None = None  # weight in the fair share; unset counts as 1

    def __post_init__(self) -> None:
        if self.owner not in ("user", "team"):
            raise ConfigError(f"a quota is of {self.owner!r}, expected user or team")
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"{self.owner} is {self.name!r}, expected a name without spaces, ':', ',', '='")
        if self.gpus is not None and (type(self.gpus) is not int or self.gpus < 0):
            raise ConfigError(f"gpus of {self} is {self.gpus!r}, expected a whole number, at least 0")
        for field, least, words in (
            ("gpu_hours_per_week", 0.0, "a number, at least 0"),
            ("share", 1e-6, "a number above 0"),
        ):
            value = getattr(self, field)
            if value is not None and not (isinstance(value, int | float) and least <= value < math.inf):
                raise ConfigError(f"{field} of {self} is {value!r}, expected {words}")

    def __str__(self) -> str:
        return f"{self.owner} {self.name}"

    @property
    def limits(self) -> bool:
        """True if it limits GPUs or GPU hours, and does not only weight a share."""
        return self.gpus is not None or self.gpu_hours_per_week is not None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON data without unset fields; `from_dict` reads it."""
        values = {field: getattr(self, field) for field in _FIELDS}
        return {self.owner: self.name, **{k: v for k, v in values.items() if v is not None}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> QuotaRule:
        """Build a rule from JSON data: either `user` or `team`, and what is limited."""
        owners = [owner for owner in ("user", "team") if data.get(owner)]
        unknown = set(data) - {"user", "team", *_FIELDS}
        if len(owners) != 1 or unknown:
            raise ConfigError(f"quota {dict(data)!r} is unknown, expected either user or team, and {_FIELDS}")
        return cls(owners[0], str(data[owners[0]]), **{k: data[k] for k in _FIELDS if k in data})


@dataclass(frozen=True)
class Quotas:
    """Quotas and shares in force: at most one rule per user and per team."""

    rules: tuple[QuotaRule, ...] = ()

    def __post_init__(self) -> None:
        seen: set[tuple[str, str]] = set()
        for rule in self.rules:
            if (rule.owner, rule.name) in seen:
                raise ConfigError(f"{rule} has two quotas, expected one")
            seen.add((rule.owner, rule.name))

    @classmethod
    def from_list(cls, data: Iterable[Mapping[str, Any]]) -> Quotas:
        """Build the rules from JSON data, as `as_list` returns it."""
        return cls(tuple(QuotaRule.from_dict(entry) for entry in data))

    def as_list(self) -> list[dict[str, Any]]:
        """Return the rules as JSON data."""
        return [rule.as_dict() for rule in self.rules]

    @cached_property
    def limits(self) -> tuple[QuotaRule, ...]:
        """The rules that limit GPUs or GPU hours, teams first."""
        return tuple(sorted((r for r in self.rules if r.limits), key=lambda r: (r.owner, r.name)))

    @cached_property
    def shares(self) -> dict[tuple[str, str], float]:
        """Shares that are set, by owner (`user` or `team`) and name; all others are 1."""
        return {(r.owner, r.name): float(r.share) for r in self.rules if r.share is not None}

    def find(self, owner: str, name: str) -> QuotaRule | None:
        """Return the rule of a user or team, or None."""
        return next((r for r in self.rules if (r.owner, r.name) == (owner, name)), None)


NO_QUOTAS = Quotas()


def parse_quota(text: str) -> QuotaRule:
    """Parse a quota as it is typed: `team:vision:gpus=8,gpu_hours_per_week=500`, `user:ann:share=2`."""
    owner, _, rest = text.partition(":")
    name, colon, limits = rest.partition(":")
    values: dict[str, Any] = {}
    for part in limits.split(",") if colon else []:
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if key not in _FIELDS or not equals or key in values:
            raise ConfigError(f"quota {text!r}: {part!r} is unknown or given twice, expected {_FORM}")
        try:
            values[key] = int(value) if key == "gpus" else float(value)
        except ValueError:
            raise ConfigError(f"quota {text!r}: {key} is {value!r}, expected a number: {_FORM}") from None
    if owner not in ("user", "team") or not values:
        raise ConfigError(f"quota {text!r} is unknown, expected {_FORM}")
    return QuotaRule(owner, name, **values)
