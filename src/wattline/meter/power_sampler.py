"""Energy of GPUs without an energy counter: power, sampled by a thread and integrated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from wattline.errors import MeterError

PERIOD_S = 0.1
"""Seconds between two samples of the power; NVML updates it about that often."""


class PeriodicThread:
    """A daemon thread that calls a function every *period_s* seconds."""

    def __init__(self, period_s: float, call: Callable[[], object]) -> None:
        self._period_s = period_s
        self._call = call
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wattline-meter", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._period_s):
            try:
                self._call()
            except MeterError:
                return  # the next reading by the user of the meter raises the same error

    def stop(self) -> None:
        """Stop the calls, and wait up to a second for one that is under way."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)


class PowerIntegrator:
    """Integral of *power_w* since the first sample, by trapezoids on a monotonic clock.

    *period_s* = None: no thread, samples are taken only by `energy_j`.
    """

    def __init__(
        self,
        power_w: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        period_s: float | None = PERIOD_S,
    ) -> None:
        self._power_w, self._clock = power_w, clock
        self._lock = threading.Lock()
        self._last_sample: tuple[float, float] | None = None
        self._energy_j = 0.0
        self.energy_j()
        self._thread = PeriodicThread(period_s, self.energy_j) if period_s is not None else None

    def energy_j(self) -> float:
        """Take a sample, and return the joules since the first."""
        with self._lock:
            power_w, now_s = self._power_w(), self._clock()
            if self._last_sample is not None:
                last_s, last_w = self._last_sample
                self._energy_j += max(now_s - last_s, 0.0) * 0.5 * (power_w + last_w)
            self._last_sample = now_s, power_w
            return self._energy_j

    def stop(self) -> None:
        """Stop sampling."""
        if self._thread is not None:
            self._thread.stop()
