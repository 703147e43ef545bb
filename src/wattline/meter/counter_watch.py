"""Renewal periods of energy counters: stated by the driver, measured once, or assumed.

NVIDIA's counters are renewed every 20 to 100 ms, depending on the GPU. The first window of a process lets a
thread read such a counter for up to a second, and later readings of the window know its period.
"""

from __future__ import annotations

import threading
import time

from wattline.errors import MeterError
from wattline.measurement.counter_period import CounterPeriod
from wattline.meter.protocol import Gpu

_ASSUMED_S = 0.1  # the slowest counter of NVIDIA's GPUs
_READ_S = 0.004  # between two readings while the period is measured
_periods_s: dict[str, float] = {}  # measured, by UUID
_watched: set[str] = set()


def counter_period_s(device: Gpu) -> float:
    """Return the seconds between two renewals of a device's energy counter; 0: it is always up to date."""
    stated = getattr(device, "counter_s", None)
    return float(_periods_s.get(device.uuid, _ASSUMED_S) if stated is None else stated)


def watch_counter(device: Gpu) -> threading.Thread | None:
    """Measure the period of NVML's counter of *device* in the background, once; None: nothing to do."""
    is_unknown = not hasattr(device, "counter_s") and device.method.startswith("nvml energy counter")
    if not is_unknown or device.uuid in _watched:
        return None
    _watched.add(device.uuid)
    thread = threading.Thread(target=measure_period, args=(device,), name="wattline-counter", daemon=True)
    thread.start()
    return thread


def measure_period(device: Gpu, seconds: float = 1.0) -> None:
    """Read the counter of *device* until its period is known, for at most *seconds*."""
    period, end_s = CounterPeriod(), time.monotonic() + seconds
    while period.period_s is None and time.monotonic() < end_s:
        try:
            period.observe(time.monotonic(), device.energy_j())
        except MeterError:
            return  # the window reports the same error
        time.sleep(_READ_S)
    if period.period_s is not None:
        _periods_s[device.uuid] = period.period_s
