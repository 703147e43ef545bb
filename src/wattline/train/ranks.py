"""What several processes of one job agree on; alone, nothing needs agreement."""

from __future__ import annotations

import os
import sys
from typing import Any


class Ranks:
    """This process among those of its job, as torchrun numbers them."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0") or 0)
        self.local = int(os.environ.get("LOCAL_RANK", "0") or 0)
        self.count = int(os.environ.get("WORLD_SIZE", "1") or 1)

    @property
    def first(self) -> bool:
        """Whether it is the one that speaks for all."""
        return self.rank == 0

    def slowest_and_sum(self, seconds: float, joules: float) -> tuple[float, float]:
        """The longest time and the sum of the joules of all; all must call it at the same step."""
        return self._reduce(seconds, "MAX"), self._reduce(joules, "SUM")

    def anybody(self, flag: bool) -> bool:
        """Whether it is true of anybody; all must call it at the same step."""
        return self._reduce(float(flag), "MAX") > 0

    def of_first(self, number: int) -> int:
        """The number that the first rank has, which is at least 0; all must call it at the same step."""
        return int(self._reduce(float(number if self.first else 0), "MAX"))

    def _reduce(self, value: float, how: str) -> float:
        """One number of all ranks; this one's where torch knows of no others."""
        torch: Any = sys.modules.get("torch")
        if self.count == 1 or torch is None or not torch.distributed.is_initialized():
            return value
        device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
        number = torch.tensor([value], dtype=torch.float64, device=device)
        torch.distributed.all_reduce(number, op=getattr(torch.distributed.ReduceOp, how))
        return float(number.item())
