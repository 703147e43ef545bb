"""State of the random number generators of Python and NumPy, from which members must not share draws."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

HostRngState = tuple[Any, Any]


def host_rng_state() -> HostRngState:
    """Return the states of both global generators."""
    return random.getstate(), np.random.get_state(legacy=True)


def is_same_rng_state(a: HostRngState, b: HostRngState) -> bool:
    """Return whether nothing was drawn between two states."""
    (ours, (_, keys, *more)), (theirs, (_, others, *rest)) = a, b
    return bool(ours == theirs and more == rest and (keys == others).all())


def set_host_rng_state(rng_state: HostRngState) -> None:
    """Set both global generators."""
    random.setstate(rng_state[0])
    np.random.set_state(rng_state[1])
