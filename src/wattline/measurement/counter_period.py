"""Renewal period of an energy counter, and the length of a window that it allows.

The counters of GPUs are renewed every 20 to 100 ms. A reading is as old as the last renewal, so a window of a
few periods measures mostly when it began and ended.
"""

from __future__ import annotations

import statistics

MIN_WINDOW_S = 2.0
MIN_PERIODS = 20
_INTERVALS = 5  # between renewals, before their median is trusted
_LONGEST_S = 0.1  # assumed of a counter that is renewed more often than it is read


class CounterPeriod:
    """Period of one counter, from the times at which its readings change.

    If all readings differ, they are rarer than the renewals, and the period is not resolved: it is taken for
    the time between two readings, or 0.1 s if that is less, the slowest counter of NVIDIA's GPUs.
    """

    def __init__(self) -> None:
        self._value: float | None = None
        self._changed_s: float | None = None
        self._intervals: list[float] = []
        self._is_resolved = False

    def observe(self, now_s: float, value: float) -> None:
        """Record a reading; nan counts as a change."""
        changed = self._value is not None and value != self._value
        self._is_resolved = self._is_resolved or value == self._value
        self._value = value
        if changed:
            if self._changed_s is not None and now_s > self._changed_s:
                self._intervals.append(now_s - self._changed_s)
            self._changed_s = now_s

    def pause(self) -> None:
        """Forget the last reading: no readings were taken since."""
        self._value = self._changed_s = None

    @property
    def period_s(self) -> float | None:
        """Median seconds between two changes; None: too few were seen."""
        if len(self._intervals) < _INTERVALS:
            return None
        period_s = statistics.median(self._intervals)
        return period_s if self._is_resolved else min(period_s, _LONGEST_S)


def min_window_s(period_s: float) -> float:
    """Return the seconds that a power window takes at least, for a counter with that period."""
    return max(MIN_WINDOW_S, MIN_PERIODS * period_s)
