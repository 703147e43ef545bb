"""Assumed speed of jobs of unknown model on other numbers of GPUs than they requested."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.errors import ConfigError, did_you_mean

_KINDS = ("request", "linear", "amdahl")


@dataclass(frozen=True, repr=False)
class Scaling:
    """Speed on n GPUs relative to the G that a job requested.

    `request`: n / G up to the most GPUs that the job accepts (*max_gpus* of its trace, else its request), and
    no faster beyond, so that no policy gains by giving it more than it asked for. `linear`: n / G without
    limit. `amdahl`: S(n) / S(G) with S(n) = 1 / ((1 - p) + p / n), where p is the *parallel* part of its work
    (Amdahl 1967).
    """

    kind: str = "request"
    parallel: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ConfigError(f"scaling is {self.kind!r}, expected one of {', '.join(_KINDS)}")
        if not 0 <= self.parallel <= 1:
            raise ConfigError(f"the parallel part must be from 0 to 1, got {self.parallel}")

    def speed(self, gpus: Ints, requested: Ints, most: Ints) -> Floats:
        """Return the speed on *gpus* relative to that on *requested*; *most* are accepted (0: unset)."""
        if self.kind == "amdahl":
            serial, parallel = 1.0 - self.parallel, self.parallel
            return np.asarray((serial + parallel / requested) / (serial + parallel / gpus))
        if self.kind == "request":
            gpus = np.minimum(gpus, np.maximum(requested, most))
        return np.asarray(gpus / requested)

    def __str__(self) -> str:
        return f"amdahl:{self.parallel:g}" if self.kind == "amdahl" else self.kind

    __repr__ = __str__


REQUEST, LINEAR = Scaling("request"), Scaling("linear")


def parse_scaling(text: str) -> Scaling:
    """Parse `request`, `linear` or `amdahl:0.9`."""
    kind, colon, part = text.strip().partition(":")
    if kind not in _KINDS:
        hint = did_you_mean(kind, _KINDS) or "amdahl:0.9 means that nine tenths of the work are parallel"
        raise ConfigError(f"scaling is {text!r}, expected request, linear or amdahl:P", hint)
    if kind != "amdahl":
        if colon:
            raise ConfigError(f"scaling is {text!r}, expected {kind} without a number")
        return Scaling(kind)
    try:
        parallel = float(part)
    except ValueError:
        parallel = math.nan
    if not 0 <= parallel <= 1:
        raise ConfigError(f"scaling is {text!r}, expected amdahl:P with P from 0 to 1, as in amdahl:0.9")
    return Scaling(kind, parallel)
