"""The power cap of a job that runs: tried just in time, found once, kept or only observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from wattline.errors import MeterError
from wattline.meter.base import Gpu
from wattline.meter.hold import Hold
from wattline.profile.window import Aim, Combine, Length, Sweep, Tried, caps_between

Tell = Callable[[str], None]


class Caps:
    """Sets caps on *gpus* through *held*: *fixed* if that is said, else what a sweep finds best by *aim*.

    *known* is what an earlier run has measured: then nothing is tried. With *observe* everything is measured,
    and the cap that was there stays.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        held: Hold,
        aim: Aim | None,
        *,
        length: Length,
        combine: Combine,
        ranks: int,
        observe: bool,
        known: Sequence[Tried],
        fixed: float | None,
        tell: Tell,
    ) -> None:
        self._gpus, self._held, self._observe, self._tell = gpus, held, observe, tell
        self.sweep: Sweep | None = None
        self.free_w = 0.0  # the cap that was there
        if not gpus:
            return
        low, high = self._range()
        self.free_w = gpus[0].cap_w()
        if fixed is not None:
            self._set(min(max(fixed, low), high))
            if not low <= fixed <= high:
                tell(f"a cap of {fixed:g} W is outside {low:g} to {high:g} W; the nearest is set")
        elif aim is not None and high > low:
            self.sweep = Sweep(caps_between(low, high), aim, length, gpus=len(gpus) * ranks, combine=combine)
            if known:
                self.sweep.tried.extend(known)
                self.sweep.end()
            self._set(self.free_w if observe and known else self.sweep.cap_w)

    def _range(self) -> tuple[float, float]:
        """What all of them allow."""
        ranges = [gpu.cap_range_w() for gpu in self._gpus]
        return max(low for low, _ in ranges), min(high for _, high in ranges)

    @property
    def wants_reading(self) -> bool:
        """Whether the next step needs the meter."""
        return self.sweep is not None and self.sweep.wants_reading

    def stepped(self, now_s: float, energy_j: float | None) -> bool:
        """A step was done; answers whether the sweep has just ended."""
        sweep = self.sweep
        if sweep is None or sweep.done:
            return False
        if self.wants_reading and energy_j is None:
            self._give_up("no reading of the meter")
            return False
        if sweep.stepped(now_s, energy_j or 0.0):
            self._set(self.free_w if self._observe and sweep.done else sweep.cap_w)
        return sweep.done

    def epoch_ended(self) -> None:
        """An epoch has ended."""
        if self.sweep is not None:
            self.sweep.epoch_ended()

    @property
    def saves(self) -> float | None:
        """The share of a step's energy that the best cap saves against what was there; None: unknown."""
        if self.sweep is None or not self.sweep.done or not self.sweep.tried:
            return None
        nearest = min(self.sweep.tried, key=lambda one: abs(one.cap_w - self.free_w))
        return 1.0 - self.sweep.found.step_j / nearest.step_j if nearest.step_j > 0 else None

    def _set(self, watts: float) -> None:
        try:
            if not self._held.set_cap(watts) and self.sweep is not None and not self.sweep.done:
                self._give_up("caps cannot be set")
        except MeterError as error:
            self._give_up(error.message)

    def _give_up(self, why: str) -> None:
        """Go on without trying caps."""
        if self.sweep is not None and not self.sweep.done:
            self._tell(f"no cap is looked for: {why}")
        self.sweep = None
        with suppress(MeterError):
            self._held.set_cap(self.free_w)
