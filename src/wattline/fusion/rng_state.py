"""Random numbers: a training that goes on draws those that it would have drawn."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

Drawn = dict[str, Any]


class Chance:
    """Where the generators are now, and where they were when the epoch began.

    Who goes on in the middle of an epoch needs both: a loader shuffles when it is begun, and what comes after
    the batches that are left out is drawn from where the step was.
    """

    def __init__(self) -> None:
        self._epoch: Drawn | None = None  # None: between two epochs
        self._found: Drawn = {}

    def load(self, found: Drawn | None) -> None:
        """What `state` gave is to be gone on with."""
        self._found = dict(found or {})

    def begin(self) -> None:
        """An epoch begins."""
        if "epoch" in self._found:
            _restore(self._found.pop("epoch"))
        self._epoch = _draws()

    def arrive(self) -> None:
        """The next step is at hand."""
        if (now := self._found.pop("now", None)) is not None:
            _restore(now)

    def end(self) -> None:
        """An epoch is over."""
        self._epoch = None
        self._found.clear()

    def state(self) -> Drawn:
        """For `load`."""
        now = _draws()
        return {"epoch": now, "now": None} if self._epoch is None else {"epoch": self._epoch, "now": now}


def _draws() -> Drawn:
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if on_gpu else [],
    }


def _restore(drawn: Drawn) -> None:
    random.setstate(drawn["python"])
    np.random.set_state(drawn["numpy"])
    torch.set_rng_state(drawn["torch"])
    if drawn["cuda"] and torch.cuda.device_count() == len(drawn["cuda"]):
        torch.cuda.set_rng_state_all(drawn["cuda"])
