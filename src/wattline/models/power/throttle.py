"""Speed and power of a computing GPU under a power cap or a locked clock.

A cap and a clock move along one curve. If one of them was measured and the other is needed, they are matched
at equal watts (the driver lowers the clock until the cap holds) or at equal speed. If neither was measured,
watts above idle are proportional to the square of the clock, and a share `INSENSITIVE` of a step does not
depend on the clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from wattline.core.table import Floats
from wattline.errors import NotFitted
from wattline.measurement.devices import DEVICES
from wattline.models.power.curves import Curves, locate_in_log_intervals

INSENSITIVE = 0.3
"""Share of a step that does not depend on the SM clock, until caps or clocks are measured."""

_EXPONENT = 2.0


@dataclass(frozen=True, eq=False)
class Throttle:
    """Rate and watts of one computing GPU against cap and clock.

    *top_w* are its unthrottled watts by local *batch*; nan: not measured, the device's are used instead.
    All watts are multiplied by *watts_factor*, which is learnt from observed power.
    """

    gpu: str
    batch: Floats
    top_w: Floats
    caps: Curves | None = None
    clocks: Curves | None = None
    watts_factor: float = 1.0

    def at(self, batch: Floats, cap_w: Floats, clock_mhz: Floats) -> tuple[Floats, Floats]:
        """Return rate and watts of one GPU at a local *batch*; nan cap or clock: unlimited.

        The rate is relative to `Speed`. With both knobs set the tighter one applies.
        """
        capped, clocked = ~np.isnan(cap_w), ~np.isnan(clock_mhz)
        if self.caps is not None and not clocked.any():
            rate, watts = self._under_cap(batch, cap_w)  # the usual case, one table lookup
        elif self.caps is not None and self.clocks is None and clocked.all() and not capped.any():
            rate, watts = self._at_clock(batch, clock_mhz)
        else:
            rate, watts = self._unthrottled(batch)
            for rows, knob, throttled in (
                (capped, cap_w, self._under_cap),
                (clocked, clock_mhz, self._at_clock),
            ):
                if rows.any():
                    knob_rate, knob_watts = throttled(batch[rows], knob[rows])
                    rate[rows] = np.minimum(rate[rows], knob_rate)
                    watts[rows] = np.fmin(watts[rows], knob_watts)
        if self.watts_factor == 1.0:
            return rate, watts
        # A cap holds whatever the factor, except where it did not hold when it was measured.
        return rate, np.fmax(
            np.minimum(self.watts_factor, 1.0) * watts, np.fmin(self.watts_factor * watts, cap_w)
        )

    def scale(self, factor: float) -> Throttle:
        """Return a copy with all watts multiplied by *factor*, as far as caps allow."""
        return replace(self, watts_factor=self.watts_factor * factor)

    def _unthrottled(self, batch: Floats) -> tuple[Floats, Floats]:
        """Return rate and watts of an unthrottled GPU."""
        unset = np.full(len(batch), np.nan)
        if self.caps is not None:
            return self._under_cap(batch, unset)
        if self.clocks is not None:
            return self._at_clock(batch, unset)
        return np.ones(len(batch)), self._interpolate_top_w(batch)

    def _interpolate_top_w(self, batch: Floats) -> Floats:
        left, share = locate_in_log_intervals(self.batch, batch)
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
        return self.clocks.against_watts()

    @cached_property
    def _caps_as_clocks(self) -> Curves:
        assert self.caps is not None
        most = DEVICES[self.gpu].max_clock_mhz
        knob = np.linspace(0.05 * most, most, len(self.caps.knob))
        top_w = self.caps.watts[:, -1:]
        least_w = self._idle_w(top_w) + (top_w - self._idle_w(top_w)) * (knob / most) ** _EXPONENT
        return self.caps.against_rate(knob, _unmeasured_rate(knob / most), least_w)

    def _under_cap(self, batch: Floats, cap_w: Floats) -> tuple[Floats, Floats]:
        if self.caps is not None:
            rate, watts = self.caps.at(batch, cap_w)
            return rate, watts * self._batch_factor(batch) if self.caps.metered else np.fmin(
                cap_w, self._interpolate_top_w(batch)
            )
        if self.clocks is not None and self.clocks.metered:
            return self._clocks_as_caps.at(batch, cap_w)
        top_w = self._interpolate_top_w(batch)
        if np.isnan(top_w).any():
            raise NotFitted(
                f"cannot predict the effect of a power cap: no watts of {self.gpu} were measured",
                "measure watts, or samples_s at several values of cap_w",
            )
        knob_watts = np.minimum(cap_w, top_w)
        idle_w = np.minimum(self._idle_w(top_w), 0.9 * knob_watts)
        clock = ((knob_watts - idle_w) / (top_w - idle_w)) ** (1.0 / _EXPONENT)
        return _unmeasured_rate(clock) * self._unthrottled(batch)[0], knob_watts

    def _at_clock(self, batch: Floats, clock_mhz: Floats) -> tuple[Floats, Floats]:
        if self.clocks is not None:
            rate, watts = self.clocks.at(batch, clock_mhz)
            return rate, watts * self._batch_factor(
                batch
            ) if self.clocks.metered else self._interpolate_top_w(batch)
        if self.gpu not in DEVICES:
            raise NotFitted(
                f"cannot predict the effect of a clock: no clock of {self.gpu} was measured",
                "measure samples_s at several values of clock_mhz",
            )
        if self.caps is not None and self.caps.metered:
            return self._caps_as_clocks.at(batch, clock_mhz)
        clock = np.minimum(clock_mhz / DEVICES[self.gpu].max_clock_mhz, 1.0)
        top_w = self._interpolate_top_w(batch)
        idle_w = self._idle_w(top_w)
        watts = idle_w + (top_w - idle_w) * clock**_EXPONENT
        return _unmeasured_rate(clock) * self._unthrottled(batch)[0], watts

    def _batch_factor(self, batch: Floats) -> Floats | float:
        """Return the ratio of *top_w* at a batch size to the watts that the curves of other sizes give."""
        curves = self.caps if self.caps is not None else self.clocks
        if curves is None or len(self.batch) <= len(curves.batch):
            return 1.0
        return self._interpolate_top_w(batch) / curves.at(batch, np.full(len(batch), np.nan))[1]


def estimate_top_w(gpu: str, clock_mhz: float, watts: float) -> float:
    """Estimate the unthrottled watts of a GPU from its *watts* at one clock."""
    if gpu not in DEVICES:
        return watts
    idle_w = min(DEVICES[gpu].idle_w, 0.5 * watts)
    clock = min(clock_mhz / DEVICES[gpu].max_clock_mhz, 1.0)
    return float(idle_w + (watts - idle_w) / clock**_EXPONENT)


def _unmeasured_rate(clock: Floats) -> Floats:
    return np.asarray(1.0 / (INSENSITIVE + (1.0 - INSENSITIVE) / clock))
