"""Random number generator states of a training run, saved and restored with its checkpoints."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

GeneratorStates = dict[str, Any]


class RngState:
    """The states of all generators now and at the start of the epoch.

    Resuming inside an epoch needs both: a loader shuffles when it is created, and the numbers after the
    skipped batches are drawn from the state at the step.
    """

    def __init__(self) -> None:
        self._epoch: GeneratorStates | None = None  # None between two epochs
        self._pending: GeneratorStates = {}

    def load(self, states: GeneratorStates | None) -> None:
        """Resume from what `state` returned."""
        self._pending = dict(states or {})

    def begin_epoch(self) -> None:
        """Restore the state at the start of the epoch if one is pending, and record it."""
        if "epoch" in self._pending:
            _restore(self._pending.pop("epoch"))
        self._epoch = _capture()

    def resume_step(self) -> None:
        """Restore the state at the step if one is pending; called before each step."""
        if (now := self._pending.pop("now", None)) is not None:
            _restore(now)

    def end_epoch(self) -> None:
        """Forget the state of the epoch."""
        self._epoch = None
        self._pending.clear()

    def state(self) -> GeneratorStates:
        """Return the states for `load`."""
        now = _capture()
        return {"epoch": now, "now": None} if self._epoch is None else {"epoch": self._epoch, "now": now}


def _capture() -> GeneratorStates:
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if on_gpu else [],
    }


def _restore(states: GeneratorStates) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all(states["cuda"])
