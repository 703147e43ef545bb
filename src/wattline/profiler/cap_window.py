"""Search for the best power cap of a running job: caps are tried one after the other while it trains.

No side effects: the caller passes the time and the meter reading, and sets the cap that the search returns.

Energy counters are renewed every 20 to 100 ms. The search first measures that period, and then takes windows
of at least 2 s and 20 periods. Where steps are shorter than half a period, they begin and end at a renewal.
Epochs that are shorter than such a window are measured several at a time, as a whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattline.errors import ConfigError
from wattline.measurement.counter_period import CounterPeriod, min_window_s
from wattline.profiler.cap_aim import Aim, CapMeasurement, find_best

_STEP_W = 25.0
_WORSE_IN_ROW = 2  # caps in a row that are clearly worse than the best end the search
_CLEARLY_WORSE = 1.02  # times the cost of the best
_RETRIES = 2  # of a window that was disturbed
_UNEVEN = 1.3  # times the step time of the fastest quarter of a window: something else took time
_UNEVEN_ERRORS = 5.0  # standard errors by which the quarters differ
_CALIBRATION_STEPS = 8  # at least, between two checks whether the period is known
_MAX_CALIBRATION_S = 60.0  # a counter that is hardly ever renewed cannot be used
_UNKNOWN = 1e30  # a period that is not known yet, when ranks agree on the longest


def list_caps(low_w: float, high_w: float, step_w: float = _STEP_W) -> tuple[float, ...]:
    """Return the caps to try, from *high_w* down to *low_w*."""
    count = math.floor((high_w - low_w) / step_w + 1e-9)
    caps = [high_w - k * step_w for k in range(count + 1)]
    return tuple(caps if caps[-1] - low_w < 1e-9 else [*caps, low_w])


@dataclass(frozen=True)
class WindowLength:
    """Length of a window: *wait* and *warmup* steps, then *steps* measured ones, or *seconds* if longer.

    No window is shorter than 2 s or 20 periods of the energy counter, whichever is longer.
    """

    wait: int = 1
    warmup: int = 10
    steps: int = 40
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.wait < 0 or self.warmup < 0 or self.steps < 1 or not 0 <= self.seconds < math.inf:
            raise ConfigError(f"the window is {self}, expected steps of at least 1, and no number below 0")

    def shorter(self) -> WindowLength:
        """Return a window of half the length."""
        return WindowLength(self.wait, self.warmup // 2, max(1, self.steps // 2), self.seconds / 2)


Combine = Callable[[float, float], tuple[float, float]]
"""Combines seconds and joules of this rank to those of the job: the maximum, and the sum."""


def _single_rank(seconds: float, joules: float) -> tuple[float, float]:
    return seconds, joules


def _single_value(value: float) -> float:
    return value


@dataclass
class CapSearch:
    """Tries caps from the largest down. Call `record_step` after each step; *cap_w* is the cap to set.

    The end of an epoch cuts a window off: it restarts in the next epoch, shorter if no window fitted in this
    one. Lower caps are left out once two in a row are clearly worse than the best. Several ranks combine
    their measurements by *combine* and agree on the largest value by *agree*, which all of them call at the
    same step. Caps among *measurements* at the start are not tried again.
    """

    caps_w: tuple[float, ...]
    aim: Aim
    length: WindowLength = field(default_factory=WindowLength)
    gpus: int = 1
    combine: Combine = _single_rank
    agree: Callable[[float], float] = _single_value
    can_align: bool = True  # windows may begin and end at a renewal, which differs between ranks
    measurements: list[CapMeasurement] = field(default_factory=list)
    period_s: float | None = None  # of the energy counters; None = not yet measured
    failed: str = ""  # why the search was given up
    spoilt: str = ""  # why the last disturbed window was disturbed
    _periods: list[CounterPeriod] = field(default_factory=list)
    _current: int = 0  # index of the cap that is tried
    _retries: int = 0  # of the window under this cap
    _steps_until_start: int = 0
    _steps: int = -1  # in the window; -1 = it has not started
    _target: int = 0  # steps after which the window may end
    _start: tuple[float, float] = (0.0, 0.0)  # seconds and joules
    _edge_j: float | None = None  # counter of the first GPU, until its next renewal
    _edge_s: float = 0.0
    _aligns: bool = False  # the window begins and ends at a renewal
    _step_end_s: list[float] = field(default_factory=list)  # of the steps in the window
    _disturbed: str = ""  # in this window
    _has_fitted: bool = False  # a window was completed in this epoch
    _epoch_start_s: float | None = None
    _last_s: float = math.nan  # end of the last step
    _spans_epochs: bool = False
    _first_s: float | None = None  # the first step of all

    def __post_init__(self) -> None:
        self._skip_known()
        self.restart_window()

    @property
    def is_done(self) -> bool:
        """True if the best cap is known, or the search was given up."""
        return self._current >= len(self.caps_w)

    @property
    def cap_w(self) -> float:
        """The cap to set now: the one that is tried, or the best."""
        return self.best.cap_w if self.is_done else self.caps_w[self._current]

    @property
    def best(self) -> CapMeasurement:
        """The best measurement so far."""
        return find_best(self.measurements, self.aim, self.caps_w[0], self.gpus)

    @property
    def is_measuring(self) -> bool:
        """True if a window has started, so that nothing else should take time."""
        return not self.is_done and self._steps >= 0 and not self._spans_epochs

    @property
    def needs_reading(self) -> bool:
        """True if the next step needs a reading of energy, since a window may start or end."""
        if self.is_done:
            return False
        if self.period_s is None:
            return True
        if self._spans_epochs:
            return False
        if self._steps < 0:
            return self._steps_until_start <= 1
        return self._steps + 1 >= self._target

    @property
    def needs_epoch_reading(self) -> bool:
        """True if the end of the epoch needs a reading of energy."""
        return not self.is_done and self._spans_epochs

    def record_step(self, now_s: float, energy_j: float | Sequence[float], disturbed: str = "") -> bool:
        """Record a step; return True if the cap to set has changed.

        *energy_j* is the counter of each GPU of this rank; it is ignored if `needs_reading` was False.
        *disturbed* says what else had an effect on the GPUs.
        """
        if self.is_done:
            return False
        step_s, self._last_s = now_s - self._last_s, now_s
        self._first_s = now_s if self._first_s is None else self._first_s
        self._epoch_start_s = now_s if self._epoch_start_s is None else self._epoch_start_s
        counters = _to_counters(energy_j)
        if self.period_s is None:
            self._observe_counters(now_s, counters)
        if self._spans_epochs:
            self._steps += self._steps >= 0
            self._disturbed = self._disturbed or disturbed
            return False
        if self._steps < 0:
            self._steps_until_start -= 1
            return self._steps_until_start <= 0 and self._begin(now_s, counters, step_s, disturbed)
        self._steps += 1
        self._step_end_s.append(now_s)
        if self._steps < self._target:
            return False
        self._disturbed = self._disturbed or disturbed
        elapsed_s, least_s = now_s - self._start[0], self._min_seconds()
        if elapsed_s < least_s:
            needed = self._steps * least_s / elapsed_s if elapsed_s > 0 else 2 * self._steps
            self._target = max(math.ceil(needed), self._steps + 1)
        target = int(self.agree(float(self._target)))  # the same on all ranks
        if target > self._steps or (self._aligns and self._awaits_renewal(now_s, counters)):
            self._target = max(target, self._steps + 1)
            return False
        return self._end(now_s, sum(counters))

    def _observe_counters(self, now_s: float, counters: Sequence[float]) -> None:
        if len(self._periods) != len(counters):
            self._periods = [CounterPeriod() for _ in counters]
        for period, counter in zip(self._periods, counters, strict=True):
            period.observe(now_s, counter)

    def _settle_period(self, now_s: float) -> bool:
        """Agree on the longest period of all GPUs and ranks; False: one of them is not known yet."""
        known = [period.period_s for period in self._periods]
        value = max((p for p in known if p is not None), default=0.0)
        if not known or None in known:
            is_late = self._first_s is not None and now_s - self._first_s > _MAX_CALIBRATION_S
            value = math.inf if is_late else _UNKNOWN
        value = self.agree(value)
        if value == math.inf:
            self.failed = f"the energy counter is not renewed often enough in {_MAX_CALIBRATION_S:g} s"
            self.finish()
        elif value < _UNKNOWN:
            self.period_s = value
        return self.period_s is not None

    def _min_seconds(self) -> float:
        return max(self.length.seconds, min_window_s(self.period_s or 0.0))

    def _begin(self, now_s: float, counters: Sequence[float], step_s: float, disturbed: str) -> bool:
        """Start the window if the period is known and the counter was just renewed."""
        if self.period_s is None and not self._settle_period(now_s):
            self._steps_until_start = max(self.length.wait + self.length.warmup, _CALIBRATION_STEPS)
            return bool(self.failed)
        assert self.period_s is not None
        if self._edge_j is None:
            self._aligns = self.can_align and step_s < 0.5 * self.period_s
        if self._aligns and self._awaits_renewal(now_s, counters):
            return False
        self._start, self._steps, self._target = (now_s, sum(counters)), 0, self.length.steps
        self._step_end_s, self._disturbed = [now_s], disturbed
        return False

    def _awaits_renewal(self, now_s: float, counters: Sequence[float]) -> bool:
        """Return True from the first call until the counter of the first GPU changes, two periods at most."""
        if self._edge_j is None:
            self._edge_j, self._edge_s = counters[0], now_s
            return True
        if counters[0] == self._edge_j and now_s - self._edge_s < 2 * (self.period_s or 0.0):
            return True
        self._edge_j = None
        return False

    def _end(self, now_s: float, energy_j: float) -> bool:
        """Record the window, or restart it if it was disturbed."""
        seconds, joules = self.combine(now_s - self._start[0], energy_j - self._start[1])
        reason = self._disturbed or _find_unevenness(self._step_end_s)
        is_spoilt = self.agree(float(bool(reason))) > 0
        if is_spoilt:
            self.spoilt = reason or "another rank was disturbed"
        self._has_fitted = True
        if is_spoilt and self._retries < _RETRIES:
            self._retries += 1
            self._clear_window()
            return False
        cap_w = self.caps_w[self._current]
        self.measurements.append(CapMeasurement(cap_w, self._steps, seconds, joules, is_spoilt))
        self._current, self._retries = self._current + 1, 0
        self._skip_known()
        self._clear_window()
        return True

    def _skip_known(self) -> None:
        """Go on to the next cap without a measurement, or end if the last ones are hopeless."""
        known = {one.cap_w for one in self.measurements}
        while not self.is_done and self.caps_w[self._current] in known:
            self._current += 1
        if self._is_hopeless():
            self._current = len(self.caps_w)

    def restart(self) -> None:
        """Forget all measurements, and begin with the largest cap."""
        self.measurements.clear()
        self._current = self._retries = 0
        self._clear_window()

    def finish(self) -> None:
        """End the search with the measurements so far."""
        self._current = len(self.caps_w)

    def end_epoch(
        self, now_s: float = math.nan, energy_j: float | Sequence[float] = 0.0, disturbed: str = ""
    ) -> bool:
        """Record the end of an epoch; return True if the cap to set has changed.

        A started window restarts in the next epoch. If epochs are too short for a window, it begins and ends
        here; then time and energy are needed.
        """
        if self.is_done:
            return False
        for period in self._periods:
            period.pause()
        epoch_s = 0.0 if self._epoch_start_s is None else self._last_s - self._epoch_start_s
        self._epoch_start_s, has_fitted, self._has_fitted = None, self._has_fitted, False
        if self._spans_epochs:
            return self._end_spanned_epoch(now_s, sum(_to_counters(energy_j)), disturbed)
        if not has_fitted and self.period_s is not None:
            too_short = epoch_s < 1.5 * self._min_seconds() or self.length.steps == 1
            self._spans_epochs = self.agree(float(too_short)) > 0
            self.length = self.length if self._spans_epochs else self.length.shorter()
        elif not has_fitted and self.agree(float(epoch_s < 2.0)) > 0:
            self._spans_epochs = True  # the period is measured meanwhile
        self._clear_window()
        return False

    def _end_spanned_epoch(self, now_s: float, energy_j: float, disturbed: str) -> bool:
        """Start a window that consists of whole epochs, or end it if it is long enough."""
        self._disturbed = self._disturbed or disturbed
        if self.period_s is None and not self._settle_period(now_s):
            return bool(self.failed)
        if self._steps <= 0:
            self._start, self._steps, self._disturbed = (now_s, energy_j), 0, disturbed
            return False
        if self.agree(float(now_s - self._start[0] < self._min_seconds())) > 0:
            return False
        return self._end(now_s, energy_j)

    def restart_window(self) -> None:
        """Restart the window under the same cap; one that consists of whole epochs goes on."""
        if not self._spans_epochs:
            self._clear_window()

    def _clear_window(self) -> None:
        self._steps_until_start, self._steps = self.length.wait + self.length.warmup, -1
        self._edge_j, self._disturbed, self._step_end_s = None, "", []

    def _is_hopeless(self) -> bool:
        """Return True if two caps in a row are clearly worse than the best, and all larger ones are known."""
        costs = dict(
            zip(
                (one.cap_w for one in self.measurements),
                self.aim.costs(self.measurements, self.caps_w[0], self.gpus) if self.measurements else (),
                strict=True,
            )
        )
        known = list(itertools.takewhile(costs.__contains__, self.caps_w))
        least = min(costs.values(), default=math.inf)
        last = [costs[cap_w] for cap_w in known[-_WORSE_IN_ROW:]]
        return (
            len(known) > _WORSE_IN_ROW
            and math.isfinite(least)
            and all(cost > _CLEARLY_WORSE * least for cost in last)
        )


def _to_counters(energy_j: float | Sequence[float]) -> Sequence[float]:
    return energy_j if isinstance(energy_j, Sequence) else (energy_j,)


def _find_unevenness(ends_s: Sequence[float]) -> str:
    """Return what is odd about the steps that end at *ends_s*; empty: nothing.

    It is odd if a quarter of them is much slower than another, by more than steps differ within a quarter.
    """
    quarters = np.array_split(np.diff(ends_s), 4)
    if len(quarters[-1]) < 2:
        return ""
    means = [float(quarter.mean()) for quarter in quarters]
    error = math.sqrt(sum(float(q.var(ddof=1)) for q in quarters) / 4 / len(quarters[-1]))
    fastest, slowest = min(means), max(means)
    if not slowest - fastest > max((_UNEVEN - 1) * fastest, _UNEVEN_ERRORS * error):  # nor if a time is nan
        return ""
    return f"steps took {1e3 * fastest:.3g} to {1e3 * slowest:.3g} ms within one window"
