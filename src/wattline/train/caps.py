"""Power cap of a running job: fixed, found by trying caps while it trains, or left alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from wattline.errors import MeterError
from wattline.meter.caps.guard import CapGuard
from wattline.meter.caps.record import CAP_TOLERANCE_W
from wattline.meter.protocol import Gpu
from wattline.profiler.cap_aim import Aim, CapMeasurement
from wattline.profiler.cap_window import CapSearch, WindowLength, list_caps
from wattline.train.ranks import Ranks


class CapTuner:
    """Sets the caps of *gpus* through *guard*: *fixed* if given, else the cap that a search finds by *aim*.

    All *ranks* try the same cap at the same step, and leave caps alone if one of them cannot set it. With
    the *known* measurements of an earlier run their caps are not tried again. With *observe* caps are tried
    and then the original ones are restored. No cap above the original one is tried.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        guard: CapGuard,
        aim: Aim | None,
        *,
        length: WindowLength,
        ranks: Ranks,
        observe: bool,
        known: Sequence[CapMeasurement],
        fixed: float | None,
        warn: Callable[[str], None],
    ) -> None:
        self._gpus, self._guard, self._observe, self._warn, self._ranks = gpus, guard, observe, warn, ranks
        self.search: CapSearch | None = None
        self.original_w: tuple[float, ...] = ()  # one per GPU
        self._has_failed = False
        self._is_wanted = aim is not None or fixed is not None
        low, high = self._read_range()
        if fixed is not None:
            if gpus and not observe:
                self._set_fixed(fixed, low, high)
        elif aim is not None and ranks.is_connected:
            self._start_search(aim, low, high, length, known)

    def _read_range(self) -> tuple[float, float]:
        """Return the range of caps that all GPUs of this rank allow; (0, 0): caps cannot be set."""
        try:
            self.original_w = tuple(gpu.cap_w() for gpu in self._gpus)
            if self.original_w:
                low = max(gpu.cap_range_w()[0] for gpu in self._gpus)
                return low, max(low, min(self.original_w))
        except MeterError as error:
            if self._is_wanted:
                self._warn(f"{error.message}: no cap is set, energy is still measured")
        return 0.0, 0.0

    def _set_fixed(self, cap_w: float, low: float, high: float) -> None:
        with suppress(MeterError):
            high = max(high, min(gpu.cap_range_w()[1] for gpu in self._gpus))
        if high > 0:
            nearest_w = min(max(cap_w, low), high)
            if not low <= cap_w <= high:
                self._warn(
                    f"a cap of {cap_w:g} W is outside {low:g} to {high:g} W; {nearest_w:g} W is set instead"
                )
            self._set(nearest_w)

    def _start_search(
        self, aim: Aim, low: float, high: float, length: WindowLength, known: Sequence[CapMeasurement]
    ) -> None:
        """Start to try caps if all ranks can, or set the best cap if it is known."""
        ranks = self._ranks
        low, high = ranks.reduce_max(low), -ranks.reduce_max(-high)
        if ranks.any(not self._gpus) or high <= low:
            return
        search = CapSearch(
            list_caps(low, high),
            aim,
            length,
            gpus=int(ranks.reduce_sum(len(self._gpus))),
            measurements=sorted((one for one in known if low <= one.cap_w <= high), reverse=True),
            combine=ranks.combine_measurement,
            agree=ranks.reduce_max,
            can_align=ranks.is_alone,
        )
        if (
            not ranks.is_alone
        ):  # the first rank has the measurements; the others cannot go on from a part of them
            known_w = ranks.broadcast_first(search.cap_w if search.is_done else 0.0)
            if known_w > 0:
                self.search = search if search.is_done else None
                if not self._observe:
                    self._set(known_w)
                return
            search.restart()
        elif search.is_done:
            self.search = search
            if not self._observe:
                self._set(search.cap_w)
            return
        self._set(search.cap_w)
        if ranks.any(self._has_failed):
            self._restore()
            return
        self.search = search

    @property
    def is_searching(self) -> bool:
        """True while caps are tried."""
        return self.search is not None and not self.search.is_done

    @property
    def is_measuring(self) -> bool:
        """True while a window is measured and nothing else should take time."""
        return self.search is not None and self.search.is_measuring

    @property
    def needs_reading(self) -> bool:
        """True if the next step needs a reading of the meter."""
        return self.search is not None and self.search.needs_reading

    @property
    def needs_check(self) -> bool:
        """True if the next reading belongs to a window, which something else may disturb."""
        return self.search is not None and self.search.period_s is not None

    @property
    def needs_epoch_reading(self) -> bool:
        """True if the end of the epoch needs a reading of the meter."""
        return self.search is not None and self.search.needs_epoch_reading

    def record_step(self, now_s: float, counters_j: Sequence[float], disturbed: str = "") -> bool:
        """Record a step; return True if the search has just ended.

        *counters_j* are the energy counters of this rank's GPUs; empty: they could not be read. A rank that
        cannot read or set takes part until the window ends, so that all ranks give up together.
        """
        search = self.search
        if search is None or search.is_done:
            return False
        self._notice_other_cap(search, search.needs_reading)
        return search.record_step(now_s, self._check(counters_j), disturbed) and self._change_cap(search)

    def end_epoch(self, now_s: float, counters_j: Sequence[float], disturbed: str = "") -> bool:
        """Record the end of an epoch; return True if the search has just ended."""
        search = self.search
        if search is None or search.is_done:
            return False
        self._notice_other_cap(search, search.needs_epoch_reading)
        return search.end_epoch(now_s, self._check(counters_j), disturbed) and self._change_cap(search)

    def _check(self, counters_j: Sequence[float]) -> Sequence[float]:
        return (math.nan,) if self._has_failed or not counters_j else counters_j

    def _change_cap(self, search: CapSearch) -> bool:
        """Set the next cap; return True if the search has ended with a result."""
        if search.failed or math.isnan(search.measurements[-1].joules):
            why = search.failed or "a cap could not be set, or energy not read"
            self._warn(f"the search for the best cap has ended: {why}")
            self.search = None
            self._restore()
            return False
        if search.measurements[-1].spoilt:
            self._warn(
                f"the window at {search.measurements[-1].cap_w:g} W was disturbed: {search.spoilt};"
                " it is used in this run only"
            )
        if search.is_done and self._observe:
            self._restore()
        else:
            self._set(search.cap_w)
        return search.is_done

    def _notice_other_cap(self, search: CapSearch, reads: bool) -> None:
        """Give up at a reading if the scheduler has set another cap since the window began."""
        with suppress(MeterError):
            if reads and any(abs(gpu.cap_w() - search.cap_w) >= CAP_TOLERANCE_W for gpu in self._gpus):
                self._has_failed = True

    def restart_window(self) -> None:
        """Restart the window: something other than training took time."""
        if self.search is not None:
            self.search.restart_window()

    @property
    def saves(self) -> float | None:
        """Share of the energy of a step that the best cap saves against the original cap; None: unknown."""
        if self.search is None or not self.search.is_done or not self.search.measurements:
            return None
        original = min(self.search.measurements, key=lambda one: abs(one.cap_w - min(self.original_w)))
        return 1.0 - self.search.best.step_j / original.step_j if original.step_j > 0 else None

    def describe(self) -> dict[str, Any]:
        """Return the result of the search as fields of a progress event."""
        search = self.search
        assert search is not None
        return {
            "cap_w": search.best.cap_w,
            "saves": self.saves,
            "tried": len(search.measurements),
            "gpus": search.gpus,
            "sweep": [list(one) for one in search.measurements],
        }

    def follow_order(self, cap_w: float) -> None:
        """Set a power limit that the service orders, and end the search; 0: the original one."""
        self.search = None
        if not self._gpus or not self.original_w:
            self._warn(f"a cap of {cap_w:g} W was ordered, and no cap can be set here")
        elif cap_w > 0:
            self._set_fixed(cap_w, *self._read_range_again())
        else:
            self._restore()

    def _read_range_again(self) -> tuple[float, float]:
        """Return the lowest cap that all GPUs allow, and their original one."""
        low = 0.0
        with suppress(MeterError):
            low = max(gpu.cap_range_w()[0] for gpu in self._gpus)
        return low, max(low, min(self.original_w))

    def _set(self, watts: float) -> None:
        try:
            self._has_failed = not self._guard.set_cap(watts) or self._has_failed
        except MeterError as error:
            self._warn(error.message)
            self._has_failed = True

    def _restore(self) -> None:
        """Set the original cap of every GPU."""
        for gpu, watts in zip(self._gpus, self.original_w, strict=True):
            with suppress(MeterError):
                self._guard.set_cap(watts, gpu)
