"""Power samples of all GPUs at fixed times, whatever the policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from wattline.backend.engine.protocol import Engine, GpuReading

POWER_INTERVAL_S = 10.0
"""Time between two power samples."""

OnPower = Callable[[float, Sequence[GpuReading]], None]
"""Called with the time and the readings of a power sample, from the thread that runs the loop."""


class PowerSampler:
    """Reads all GPUs when a sample is due, at multiples of the interval; without *on_power* never."""

    def __init__(self, engine: Engine, on_power: OnPower | None) -> None:
        self._engine, self._on_power = engine, on_power
        self.next_s = math.inf if on_power is None else -math.inf

    def sample(self, now_s: float) -> None:
        """Take a sample if one is due."""
        if self._on_power is None or now_s < self.next_s:
            return
        self.next_s = (math.floor(now_s / POWER_INTERVAL_S) + 1) * POWER_INTERVAL_S
        self._on_power(now_s, self._engine.read_gpus())
