"""Agreement between the ranks of a distributed job; a single process needs none."""

from __future__ import annotations

import os
import sys
from typing import Any

from wattline.errors import ConfigError


class Ranks:
    """This process among the ranks of its job, as numbered by torchrun.

    The methods are collective: every rank must call the same ones in the same order. If `torch.distributed`
    is not initialised, each rank gets its own value back.
    """

    def __init__(self) -> None:
        self.rank, self.local_rank = _read_number("RANK", 0), _read_number("LOCAL_RANK", 0)
        self.count = _read_number("WORLD_SIZE", 1)

    @property
    def is_first(self) -> bool:
        """True on rank 0, which writes events and checkpoints for all."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """True if there are no other ranks to communicate with."""
        return self.count == 1 or not self.is_connected

    @property
    def is_connected(self) -> bool:
        """True if the ranks can communicate; always true for a single process."""
        torch: Any = sys.modules.get("torch")
        return self.count == 1 or bool(torch is not None and torch.distributed.is_initialized())

    def reduce_max(self, value: float) -> float:
        """Return the largest value of all ranks."""
        return self._reduce(value, "MAX")

    def reduce_sum(self, value: float) -> float:
        """Return the sum of the values of all ranks."""
        return self._reduce(value, "SUM")

    def combine_measurement(self, seconds: float, joules: float) -> tuple[float, float]:
        """Return the longest time and the sum of the joules of all ranks."""
        return self.reduce_max(seconds), self.reduce_sum(joules)

    def any(self, flag: bool) -> bool:
        """Return True if *flag* is true on any rank; also serves as a barrier."""
        return self.reduce_max(float(flag)) > 0

    def broadcast_first(self, number: float) -> float:
        """Return the number of rank 0, which must be at least 0."""
        return self.reduce_max(number if self.is_first else 0.0)

    def _reduce(self, value: float, operation: str) -> float:
        if self.is_alone:
            return value
        torch: Any = sys.modules["torch"]
        device = f"cuda:{self.local_rank}" if torch.distributed.get_backend() == "nccl" else "cpu"
        number = torch.tensor([value], dtype=torch.float64, device=device)
        torch.distributed.all_reduce(number, op=getattr(torch.distributed.ReduceOp, operation))
        return float(number.item())


def _read_number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if text and not text.isdecimal():
        raise ConfigError(f"{name} is {text!r}, expected a whole number of at least 0")
    return int(text) if text else default
