"""Power draw, limits and memory of a GPU as its driver reports them, for products that are not listed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from wattline.errors import MeterError
from wattline.meter.protocol import Gpu, SharedGpu

_T = TypeVar("_T")
_MIN_BUSY_W = 100.0
_IDLE_TIMES = 4.0  # of the draw when idle: assumed of a GPU that states no limit


@dataclass(frozen=True)
class GpuFacts:
    """Readings of one GPU; None: it cannot be read."""

    power_w: float | None
    is_idle: bool  # no process uses it, as far as the driver knows
    min_cap_w: float | None
    max_cap_w: float | None
    mem_gib: float | None

    @property
    def idle_w(self) -> float:
        """Draw without a job: measured if the GPU is idle now, else a tenth of its limit."""
        if self.power_w is not None and (self.is_idle or self.max_cap_w is None):
            return self.power_w
        return 0.1 * (self.max_cap_w or _MIN_BUSY_W)

    @property
    def busy_w(self) -> float:
        """Upper bound of the draw with a job: the limit, so that budgets hold before it is measured."""
        return self.max_cap_w or max(_IDLE_TIMES * self.idle_w, _MIN_BUSY_W)

    def __str__(self) -> str:
        idle = f"idle {self.idle_w:.0f} W ({'measured' if self.is_idle and self.power_w else 'assumed'})"
        limits = (
            f"limits {self.min_cap_w or 0:.0f} to {self.max_cap_w:.0f} W"
            if self.max_cap_w
            else f"no power limit to read ({self.busy_w:.0f} W assumed)"
        )
        memory = "memory unknown" if self.mem_gib is None else f"{self.mem_gib:.0f} GiB"
        return f"{idle}, {limits}, {memory}"


def read_gpu_facts(gpu: Gpu) -> GpuFacts:
    """Read *gpu*."""
    caps = _try_read(gpu.cap_range_w)
    others = _try_read(gpu.other_processes) if isinstance(gpu, SharedGpu) else None
    return GpuFacts(
        power_w=_try_read(gpu.power_w),
        is_idle=others == (),
        min_cap_w=None if caps is None else caps[0],
        max_cap_w=None if caps is None else caps[1],
        mem_gib=_try_read(getattr(gpu, "memory_gib", lambda: None)),
    )


def _try_read(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except MeterError:
        return None
