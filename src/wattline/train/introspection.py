"""Facts about the running script: its name, the size of its batches, and its GPUs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattline.errors import MeterError
from wattline.meter.protocol import Gpu, Meter


def get_script_name() -> str:
    """Return the script with its arguments; measured caps are stored under this name."""
    script = str(Path(sys.argv[0]).resolve()) if sys.argv and sys.argv[0] else ""
    return " ".join((script, *sys.argv[1:]))


def count_samples(batch: Any) -> int:
    """Return the number of samples in a batch; 0: unknown."""
    while isinstance(batch, tuple | list | dict):
        if not batch:
            return 0
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else 0


def sum_max_caps(gpus: Sequence[Gpu]) -> float:
    """Return the sum of the largest caps in watts; 0: unknown."""
    try:
        return float(sum(gpu.cap_range_w()[1] for gpu in gpus))
    except MeterError:
        return 0.0


def describe_device(meter: Meter, gpus: Sequence[Gpu]) -> str:
    """Return name, driver and range of caps; measured caps are valid as long as these stay the same."""
    if not gpus:
        return ""
    text = gpus[0].name
    with suppress(MeterError):
        text += f", driver {getattr(meter, 'driver', '') or 'unknown'}"
    with suppress(MeterError):
        low, high = gpus[0].cap_range_w()
        text += f", {low:g} to {high:g} W"
    return text
