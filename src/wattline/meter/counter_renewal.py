"""Measurement of how often the energy counters of a meter are renewed."""

from __future__ import annotations

import time
from collections.abc import Iterable

from wattline.errors import MeterError
from wattline.measurement.counter_period import CounterPeriod
from wattline.meter.protocol import Gpu, Meter

_POLL_S = 0.001
_MAX_S = 1.5


def measure_counter_periods(meter: Meter, gpus: Iterable[Gpu] | None = None) -> dict[str, float]:
    """Read the counters for up to 1.5 s, and return the seconds between two renewals by UUID.

    A GPU is missing if its counter cannot be read, is renewed too rarely, or its time does not pass by itself
    (`time=virtual`).
    """
    periods = {gpu.uuid: (gpu, CounterPeriod()) for gpu in (meter.gpus if gpus is None else gpus)}
    end_s, found, start_s = time.monotonic() + _MAX_S, dict[str, float](), meter.now_s()
    while len(found) < len(periods) and time.monotonic() < end_s:
        for uuid, (gpu, period) in periods.items():
            if uuid in found:
                continue
            try:
                period.observe(meter.now_s(), gpu.energy_j())
            except MeterError:
                return found
            if period.period_s is not None:
                found[uuid] = period.period_s
        time.sleep(_POLL_S)
        if meter.now_s() == start_s:
            break
    return found
