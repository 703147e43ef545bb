"""Speed and watts against one knob of a GPU, a power cap or a clock: fitted laws, looked up in tables.

A law is fitted per local batch size that was measured, and written into a table with evenly spaced
knobs, so that a prediction is a lookup whatever the law. Between batch sizes the logarithm of the size
decides.

Deviates: the watts of a fit (not of the library, which has coefficients only) are corrected by what was
measured. Against clocks the law is bent through the measurements; against caps, where they scatter more,
it is the mean of the law and of lines between them. Over all ways to leave points out, both were better
on average than the law or the lines alone (`benchmarks/held_out.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from wattline.model import ramp, volts
from wattline.table import Floats, Ints

_REACH = 2.0  # the tables go this factor below what was measured; further down nothing changes
_KNOTS = 257
_LEAST_RATE = 1e-3
_HALVINGS = 24


@dataclass(frozen=True, eq=False)
class Curves:
    """One row per local *batch* size: *rate* and *watts* of one GPU at each *knob*.

    The rate is relative to what `Speed` says; near 1 at the *last* knob: it and more hold nothing back.

    *rate_law* and *watts_law* are the fitted coefficients, `ramp` against caps and `volts` against
    clocks for the watts (nan: not measured). *first* to *last* was measured.
    """

    batch: Floats
    knob: Floats
    rate: Floats
    watts: Floats
    rate_law: Floats
    watts_law: Floats
    first: float
    last: float

    @property
    def metered(self) -> bool:
        """Whether watts were measured along with the speed."""
        return not bool(np.isnan(self.watts_law).any())

    def at(self, batch: Floats, knob: Floats) -> tuple[Floats, Floats]:
        """Rate and watts of a GPU at a local *batch* and a *knob*; a knob that is nan holds nothing back."""
        first, last = self.knob[0], self.knob[-1]
        knob = np.clip(np.where(np.isnan(knob), last, knob), first, last)
        place = (knob - first) * ((_KNOTS - 1) / (last - first))
        left = np.minimum(place.astype(np.int64), _KNOTS - 2)
        share = place - left
        if len(self.batch) == 1:
            return _along(self.rate[0], left, share), _along(self.watts[0], left, share)
        row, mix = between(self.batch, batch)
        left += _KNOTS * row
        here = left, left + 1, left + _KNOTS, left + _KNOTS + 1
        much = mix * share
        weights = 1.0 - share - mix + much, share - much, mix - much, much

        def mixed(table: Floats) -> Floats:
            corners = [table.take(index) * weight for index, weight in zip(here, weights, strict=True)]
            return np.asarray(corners[0] + corners[1] + corners[2] + corners[3])

        return mixed(self.rate), mixed(self.watts)

    def knob_for(self, batch: Floats, *, watts: Floats | None = None, rate: Floats | None = None) -> Floats:
        """The largest knob at which no more *watts* are drawn, or no higher *rate* is reached."""
        which, most = (0, rate) if watts is None else (1, watts)
        low, high = np.full(len(batch), self.knob[0]), np.full(len(batch), self.knob[-1])
        if most is None:
            return high
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            room = self.at(batch, middle)[which] <= most
            low, high = np.where(room, middle, low), np.where(room, high, middle)
        return np.where(self.at(batch, high)[which] <= most, high, low)

    def bent(self, rate: Floats) -> Curves:
        """The same curves with the rates of each batch size multiplied."""
        law = self.rate_law.copy()
        law[:, :2] *= rate[:, None]
        return replace(self, rate=self.rate * rate[:, None], rate_law=law)


def between(known: Floats, asked: Floats) -> tuple[Ints, Floats]:
    """Between which of the *known* values each of *asked* lies, and how far on the way, by logarithm."""
    if len(known) == 1:
        return np.zeros(len(asked), dtype=np.int64), np.zeros(len(asked))
    places, at = np.log(known), np.log(asked)
    left = np.clip(np.searchsorted(places, at, side="right") - 1, 0, len(known) - 2)
    return left, np.clip((at - places[left]) / np.diff(places)[left], 0.0, 1.0)


def _along(table: Floats, left: Ints, share: Floats) -> Floats:
    low = table.take(left)
    return np.asarray(low + share * (table.take(left + 1) - low))


def fit_caps(batch: Floats, cap_w: Floats, samples_s: Floats, watts: Floats, noise: Floats) -> Curves:
    """Curves against caps, one per local *batch*: of speeds in any unit, and watts of one GPU or nan."""
    width = len(ramp.COEFFICIENTS)
    laws = _laws(batch, cap_w, samples_s, watts, noise, ramp.fit_ramp, width)
    curves = caps_from_laws(np.unique(batch), *laws, float(cap_w.min()), float(cap_w.max()))
    return _corrected(curves, batch, cap_w, watts, _halfway)


def fit_clocks(batch: Floats, clock_mhz: Floats, samples_s: Floats, watts: Floats, noise: Floats) -> Curves:
    """Curves against clocks, one per local *batch*: of speeds in any unit, and watts of one GPU or nan."""
    width = len(volts.COEFFICIENTS)
    laws = _laws(batch, clock_mhz, samples_s, watts, noise, volts.fit_volts, width)
    curves = clocks_from_laws(np.unique(batch), *laws, float(clock_mhz.min()), float(clock_mhz.max()))
    return _corrected(curves, batch, clock_mhz, watts, _through)


def caps_from_laws(batch: Floats, rate_law: Floats, watts_law: Floats, first: float, last: float) -> Curves:
    """Curves against caps from their coefficients, a row per batch size."""
    return _tabulated(batch, rate_law, watts_law, first, last, ramp.ramp)


def clocks_from_laws(batch: Floats, rate_law: Floats, watts_law: Floats, first: float, last: float) -> Curves:
    """Curves against clocks from their coefficients, a row per batch size."""
    return _tabulated(batch, rate_law, watts_law, first, last, volts.clock_watts)


def _tabulated(
    batch: Floats, rate_law: Floats, watts_law: Floats, first: float, last: float, law: Callable[..., Floats]
) -> Curves:
    knob = np.linspace(first / _REACH, last, _KNOTS)
    rate = np.maximum([ramp.ramp(knob, *row) for row in rate_law], _LEAST_RATE)
    watts = np.array([law(knob, *row) for row in watts_law])
    return Curves(batch, knob, rate, watts, rate_law, watts_law, first, last)


def _laws(
    batch: Floats,
    knob: Floats,
    samples_s: Floats,
    watts: Floats,
    noise: Floats,
    fit_watts: Callable[[Floats, Floats, Floats], Floats],
    width: int,
) -> tuple[Floats, Floats]:
    rates, draws = [], []
    for size in np.unique(batch):
        here = batch == size
        timed = here & ~np.isnan(samples_s)
        law = ramp.fit_ramp(knob[timed], samples_s[timed], noise[timed])
        law[:2] /= ramp.ramp(knob[timed].max(), *law)
        rates.append(law)
        metered = here & ~np.isnan(watts)
        draws.append(fit_watts(knob[metered], watts[metered], noise[metered]) if metered.any() else None)
    known = np.array([row for row, law in enumerate(draws) if law is not None])
    if not len(known):
        return np.array(rates), np.full((len(rates), width), np.nan)
    # A size without watts draws what the nearest size with watts does.
    nearest = (int(known[np.argmin(np.abs(known - row))]) for row in range(len(draws)))
    return np.array(rates), np.array([draws[row] for row in nearest])


def _corrected(
    curves: Curves,
    batch: Floats,
    knob: Floats,
    watts: Floats,
    correct: Callable[[Floats, Floats, Floats, Floats], Floats],
) -> Curves:
    """*curves* whose watts were corrected by what was measured, and still rise with the knob."""
    table = curves.watts.copy()
    for row, size in enumerate(curves.batch):
        here = np.flatnonzero((batch == size) & ~np.isnan(watts))
        if len(here):
            order = here[np.argsort(knob[here])]
            table[row] = correct(curves.knob, table[row], knob[order], watts[order])
    return replace(curves, watts=np.maximum.accumulate(table, axis=1))


def _halfway(knob: Floats, law: Floats, places: Floats, measured: Floats) -> Floats:
    """The mean of a *law* and of lines between what was *measured*, made to rise with the knob."""
    rising = 0.5 * (np.maximum.accumulate(measured) + np.minimum.accumulate(measured[::-1])[::-1])
    inside = np.clip(knob, places[0], places[-1])
    # Outside of what was measured the law goes on from where the mean ends.
    return np.asarray(law + 0.5 * (np.interp(inside, places, rising) - np.interp(inside, knob, law)))


def _through(knob: Floats, law: Floats, places: Floats, measured: Floats) -> Floats:
    """A *law* bent to go through what was *measured*."""
    return np.asarray(law * np.interp(knob, places, measured / np.interp(places, knob, law)))
