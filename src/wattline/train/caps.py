"""The power cap of a job that runs: tried just in time, found once, kept or only observed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from wattline.errors import MeterError
from wattline.meter.caps.guard import Hold
from wattline.meter.protocol import Gpu
from wattline.profiler.cap_window import Aim, Length, Sweep, Tried, caps_between
from wattline.train.ranks import Ranks

Tell = Callable[[str], None]


class Caps:
    """Sets caps on *gpus* through *held*: *fixed* if that is said, else what a sweep finds best by *aim*.

    All *ranks* try the same cap at the same step, and leave caps alone if one of them cannot. *known* is what
    an earlier run has measured: then nothing is tried. With *observe* caps are tried, and then those that
    were there come back. No cap is set that is larger than the one that was there.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        held: Hold,
        aim: Aim | None,
        *,
        length: Length,
        ranks: Ranks,
        observe: bool,
        known: Sequence[Tried],
        fixed: float | None,
        tell: Tell,
    ) -> None:
        self._gpus, self._held, self._observe, self._tell, self._ranks = gpus, held, observe, tell, ranks
        self.sweep: Sweep | None = None
        self.free_w: tuple[float, ...] = ()  # the caps that were there, GPU by GPU
        self._broken = False
        low, high = self._range()
        if fixed is not None:
            if gpus and not observe:
                self._fix(fixed, low, high)
        elif aim is not None and ranks.joined:
            self._begin(aim, low, high, length, known)

    def _range(self) -> tuple[float, float]:
        """The caps that all GPUs of this rank allow; the same twice: none can be set."""
        with suppress(MeterError):
            self.free_w = tuple(gpu.cap_w() for gpu in self._gpus)
            if self.free_w:
                low = max(gpu.cap_range_w()[0] for gpu in self._gpus)
                return low, max(low, min(self.free_w))
        return 0.0, 0.0

    def _fix(self, cap_w: float, low: float, high: float) -> None:
        with suppress(MeterError):
            high = max(high, min(gpu.cap_range_w()[1] for gpu in self._gpus))
        if high > 0:
            if not low <= cap_w <= high:
                self._tell(f"a cap of {cap_w:g} W is outside {low:g} to {high:g} W; the nearest is set")
            self._set(min(max(cap_w, low), high))

    def _begin(self, aim: Aim, low: float, high: float, length: Length, known: Sequence[Tried]) -> None:
        """Begin to try caps, if all ranks can; or set at once what is known to be best."""
        ranks = self._ranks
        low, high = ranks.most(low), -ranks.most(-high)
        if ranks.anybody(not self._gpus) or high <= low:
            return
        count = int(ranks.total(len(self._gpus)))
        sweep = Sweep(caps_between(low, high), aim, length, gpus=count, combine=ranks.slowest_and_sum)
        if known:
            sweep.tried.extend(known)
            sweep.end()
        found_w = ranks.of_first(sweep.cap_w if known else 0.0)
        if found_w > 0:  # the first rank knows, and tells the others
            self.sweep = sweep if known else None
            if not self._observe:
                self._set(found_w)
            return
        self._set(sweep.cap_w)
        if ranks.anybody(self._broken):
            self._restore()
            return
        self.sweep = sweep

    @property
    def trying(self) -> bool:
        """Whether the best cap is still looked for."""
        return self.sweep is not None and not self.sweep.done

    @property
    def measuring(self) -> bool:
        """Whether nothing else should take time now."""
        return self.sweep is not None and self.sweep.measuring

    @property
    def wants_reading(self) -> bool:
        """Whether the next step needs the meter."""
        return self.sweep is not None and self.sweep.wants_reading

    def stepped(self, now_s: float, energy_j: float | None) -> bool:
        """A step was done; answers whether the sweep has just ended.

        A rank that cannot read or set takes part to the end of the window, so that all give up together.
        """
        sweep = self.sweep
        if sweep is None or sweep.done:
            return False
        bad = self._broken or energy_j is None
        if not sweep.stepped(now_s, math.nan if bad else energy_j or 0.0):
            return False
        if math.isnan(sweep.tried[-1].joules):
            self._tell("no cap is looked for any more: one could not be set or read")
            self.sweep = None
            self._restore()
            return False
        if sweep.done and self._observe:
            self._restore()
        else:
            self._set(sweep.cap_w)
        return sweep.done

    def cut(self) -> None:
        """Something else took time: a window that had begun begins anew."""
        if self.sweep is not None:
            self.sweep.begin_anew()

    def epoch_ended(self) -> None:
        """An epoch has ended."""
        if self.sweep is not None:
            self.sweep.epoch_ended()

    @property
    def saves(self) -> float | None:
        """The share of a step's energy that the best cap saves against what was there; None: unknown."""
        if self.sweep is None or not self.sweep.done or not self.sweep.tried:
            return None
        nearest = min(self.sweep.tried, key=lambda one: abs(one.cap_w - min(self.free_w)))
        return 1.0 - self.sweep.found.step_j / nearest.step_j if nearest.step_j > 0 else None

    def _set(self, watts: float) -> None:
        try:
            self._broken = not self._held.set_cap(watts) or self._broken
        except MeterError as error:
            self._tell(error.message)
            self._broken = True

    def _restore(self) -> None:
        """Every GPU as it was."""
        for gpu, watts in zip(self._gpus, self.free_w, strict=True):
            with suppress(MeterError):
                self._held.set_cap(watts, gpu)
