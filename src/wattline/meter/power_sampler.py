"""Joules where there is no counter: power, sampled by a thread and integrated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from wattline.errors import MeterError

PERIOD_S = 0.1
"""How often power is looked at: what NVML renews it with is about that slow."""


class Every:
    """Calls something again and again, from a thread that never keeps a process alive."""

    def __init__(self, period_s: float, call: Callable[[], object]) -> None:
        self._period_s = period_s
        self._call = call
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wattline-meter", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._period_s):
            try:
                self._call()
            except MeterError:
                return  # whoever asks next is told

    def stop(self) -> None:
        """No more calls after this."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)


class Integrator:
    """The integral of *power_w* since the first look, by trapezoids on a clock that never jumps."""

    def __init__(
        self,
        power_w: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        period_s: float | None = PERIOD_S,
    ) -> None:
        self._power_w, self._clock = power_w, clock
        self._lock = threading.Lock()
        self._last: tuple[float, float] | None = None
        self._energy_j = 0.0
        self.energy_j()
        self._thread = Every(period_s, self.energy_j) if period_s is not None else None

    def energy_j(self) -> float:
        """Joules until now."""
        with self._lock:
            watts, now_s = self._power_w(), self._clock()
            if self._last is not None:
                then_s, before = self._last
                self._energy_j += max(now_s - then_s, 0.0) * 0.5 * (watts + before)
            self._last = now_s, watts
            return self._energy_j

    def stop(self) -> None:
        """Look no more."""
        if self._thread is not None:
            self._thread.stop()
