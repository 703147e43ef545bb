"""What a power cap or a clock does to a GPU that computes: how fast it still is, and what it draws.

A cap and a clock are two knobs of one curve. Where one of them was measured and the other is asked for,
the two meet at equal watts (the driver lowers the clock until the cap holds) or at equal speed. Where
neither was measured, watts above idle go with the square of the clock, and `INSENSITIVE` of a step does
not wait for the clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from wattline.core.table import Floats
from wattline.errors import NotFitted
from wattline.measurement.devices import DEVICES
from wattline.models.power.curves import Curves, between

INSENSITIVE = 0.3
"""Share of a step that does not wait for the SM clock, until caps or clocks are measured."""

_EXPONENT = 2.0


@dataclass(frozen=True, eq=False)
class Throttle:
    """Rate and watts of one computing GPU against cap and clock.

    *top_w* are its watts when nothing holds it back, by local *batch*; nan: never measured, then the
    device's are taken. It was seen to draw *more* times as much as all that says.
    """

    gpu: str
    batch: Floats
    top_w: Floats
    caps: Curves | None = None
    clocks: Curves | None = None
    more: float = 1.0

    def at(self, batch: Floats, cap_w: Floats, clock_mhz: Floats) -> tuple[Floats, Floats]:
        """Rate and watts of one GPU at a local *batch*; a knob that is nan holds nothing back.

        The rate is relative to what `Speed` says. With both knobs set the tighter one rules.
        """
        capped, clocked = ~np.isnan(cap_w), ~np.isnan(clock_mhz)
        if self.caps is not None and not clocked.any():
            rate, watts = self._capped(batch, cap_w)  # the usual case, in one look
        elif self.caps is not None and self.clocks is None and clocked.all() and not capped.any():
            rate, watts = self._clocked(batch, clock_mhz)
        else:
            rate, watts = self._free(batch)
            for rows, knob, held in ((capped, cap_w, self._capped), (clocked, clock_mhz, self._clocked)):
                if rows.any():
                    slower, draws = held(batch[rows], knob[rows])
                    rate[rows] = np.minimum(rate[rows], slower)
                    watts[rows] = np.fmin(watts[rows], draws)
        if self.more == 1.0:
            return rate, watts
        # However much more it draws, a cap holds, except where it did not when it was measured.
        return rate, np.fmax(np.minimum(self.more, 1.0) * watts, np.fmin(self.more * watts, cap_w))

    def scaled(self, factor: float) -> Throttle:
        """The same with all watts multiplied, as far as caps allow."""
        return replace(self, more=self.more * factor)

    def _free(self, batch: Floats) -> tuple[Floats, Floats]:
        """Rate and watts where nothing holds the GPU back."""
        nothing = np.full(len(batch), np.nan)
        if self.caps is not None:
            return self._capped(batch, nothing)
        if self.clocks is not None:
            return self._clocked(batch, nothing)
        return np.ones(len(batch)), self._top(batch)

    def _top(self, batch: Floats) -> Floats:
        left, share = between(self.batch, batch)
        right = np.minimum(left + 1, len(self.batch) - 1)
        watts = (1.0 - share) * self.top_w[left] + share * self.top_w[right]
        return np.where(np.isnan(watts), self._device_w(), watts)

    def _device_w(self) -> float:
        return DEVICES[self.gpu].busy_w if self.gpu in DEVICES else np.nan

    def _idle_w(self, top_w: Floats) -> Floats:
        known = DEVICES[self.gpu].idle_w if self.gpu in DEVICES else 0.2 * top_w
        return np.minimum(known, 0.5 * top_w)

    @cached_property
    def _clocks_as_caps(self) -> Curves:
        assert self.clocks is not None
        return self.clocks.by_watts()

    @cached_property
    def _caps_as_clocks(self) -> Curves:
        assert self.caps is not None
        most = DEVICES[self.gpu].max_clock_mhz
        knob = np.linspace(0.05 * most, most, len(self.caps.knob))
        top_w = self.caps.watts[:, -1:]
        least_w = self._idle_w(top_w) + (top_w - self._idle_w(top_w)) * (knob / most) ** _EXPONENT
        return self.caps.by_rate(knob, _unmeasured_rate(knob / most), least_w)

    def _capped(self, batch: Floats, cap_w: Floats) -> tuple[Floats, Floats]:
        if self.caps is not None:
            rate, watts = self.caps.at(batch, cap_w)
            return rate, watts * self._extra(batch) if self.caps.metered else np.fmin(cap_w, self._top(batch))
        if self.clocks is not None and self.clocks.metered:
            return self._clocks_as_caps.at(batch, cap_w)
        top_w = self._top(batch)
        if np.isnan(top_w).any():
            raise NotFitted(
                f"what a cap does cannot be told: no watts of {self.gpu} were ever measured",
                "measure watts, or samples_s at several values of cap_w",
            )
        draws = np.minimum(cap_w, top_w)
        idle_w = np.minimum(self._idle_w(top_w), 0.9 * draws)
        clock = ((draws - idle_w) / (top_w - idle_w)) ** (1.0 / _EXPONENT)
        return _unmeasured_rate(clock) * self._free(batch)[0], draws

    def _clocked(self, batch: Floats, clock_mhz: Floats) -> tuple[Floats, Floats]:
        if self.clocks is not None:
            rate, watts = self.clocks.at(batch, clock_mhz)
            return rate, watts * self._extra(batch) if self.clocks.metered else self._top(batch)
        if self.gpu not in DEVICES:
            raise NotFitted(
                f"what a clock does cannot be told: no clock of {self.gpu} was ever measured",
                "measure samples_s at several values of clock_mhz",
            )
        if self.caps is not None and self.caps.metered:
            return self._caps_as_clocks.at(batch, clock_mhz)
        clock = np.minimum(clock_mhz / DEVICES[self.gpu].max_clock_mhz, 1.0)
        top_w = self._top(batch)
        idle_w = self._idle_w(top_w)
        watts = idle_w + (top_w - idle_w) * clock**_EXPONENT
        return _unmeasured_rate(clock) * self._free(batch)[0], watts

    def _extra(self, batch: Floats) -> Floats | float:
        """What a GPU draws at a batch size beyond what the curves of other sizes say."""
        curves = self.caps if self.caps is not None else self.clocks
        if curves is None or len(self.batch) <= len(curves.batch):
            return 1.0
        return self._top(batch) / curves.at(batch, np.full(len(batch), np.nan))[1]


def top_of(gpu: str, clock_mhz: float, watts: float) -> float:
    """Watts of a GPU that nothing holds back, from what it draws at one clock, until more are measured."""
    if gpu not in DEVICES:
        return watts
    idle_w = min(DEVICES[gpu].idle_w, 0.5 * watts)
    clock = min(clock_mhz / DEVICES[gpu].max_clock_mhz, 1.0)
    return float(idle_w + (watts - idle_w) / clock**_EXPONENT)


def _unmeasured_rate(clock: Floats) -> Floats:
    return np.asarray(1.0 / (INSENSITIVE + (1.0 - INSENSITIVE) / clock))
