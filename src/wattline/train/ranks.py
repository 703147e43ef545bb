"""What several processes of one job agree on; alone, nothing needs agreement."""

from __future__ import annotations

import os
import sys
from typing import Any

from wattline.errors import ConfigError


class Ranks:
    """This process among those of its job, as torchrun numbers them.

    What is agreed on is agreed by all at the same step: every rank must ask the same questions in the same
    order. Who has not joined (`torch.distributed` is not initialised) agrees with itself.
    """

    def __init__(self) -> None:
        self.rank, self.local = _number("RANK", 0), _number("LOCAL_RANK", 0)
        self.count = _number("WORLD_SIZE", 1)

    @property
    def first(self) -> bool:
        """Whether it is the one that speaks for all."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with."""
        return self.count == 1 or not self.joined

    @property
    def joined(self) -> bool:
        """Whether the ranks can talk to each other."""
        torch: Any = sys.modules.get("torch")
        return self.count == 1 or bool(torch is not None and torch.distributed.is_initialized())

    def most(self, value: float) -> float:
        """The largest of all."""
        return self._reduce(value, "MAX")

    def total(self, value: float) -> float:
        """The sum of all."""
        return self._reduce(value, "SUM")

    def slowest_and_sum(self, seconds: float, joules: float) -> tuple[float, float]:
        """The longest time and the sum of the joules of all."""
        return self.most(seconds), self.total(joules)

    def anybody(self, flag: bool) -> bool:
        """Whether it is true of anybody; also a place where all wait for all."""
        return self.most(float(flag)) > 0

    def of_first(self, number: float) -> float:
        """The number that the first rank has, which is at least 0."""
        return self.most(number if self.first else 0.0)

    def _reduce(self, value: float, how: str) -> float:
        if self.alone:
            return value
        torch: Any = sys.modules["torch"]
        on = f"cuda:{self.local}" if torch.distributed.get_backend() == "nccl" else "cpu"
        number = torch.tensor([value], dtype=torch.float64, device=on)
        torch.distributed.all_reduce(number, op=getattr(torch.distributed.ReduceOp, how))
        return float(number.item())


def _number(name: str, usual: int) -> int:
    text = os.environ.get(name, "")
    if text and not text.isdecimal():
        raise ConfigError(f"{name} is {text!r}, expected a whole number of at least 0")
    return int(text) if text else usual
