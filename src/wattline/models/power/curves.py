"""Speed and watts against one knob of a GPU, a power cap or a clock: fitted laws, looked up in tables.

A law is fitted per local batch size that was measured, and written into a table with evenly spaced
knobs, so that a prediction is a lookup whatever the law. Between batch sizes the logarithm of the size
decides.

Deviates: the watts of a fit (not of the library, which has coefficients only) are corrected by what was
measured. Against clocks the law is bent through the measurements; against caps, where they scatter more,
it is the mean of the law and of lines between them, which over many choices of caps was better on
average than either alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.models.power import clock_power as volts
from wattline.models.power import clock_speed as pace
from wattline.models.power import ramp

REACH = 2.0
"""Predictions reach this factor beyond what was measured, in every knob that was ever varied."""

_KNOTS = 257
_LEAST_RATE = 1e-3
_NOISE = 0.01  # relative, of watts
_POINTS = 64


@dataclass(frozen=True, eq=False)
class Curves:
    """One row per local *batch* size: *rate* and *watts* of one GPU at each *knob*.

    The rate is relative to what `Speed` says; near 1 at the *last* knob: it and more hold nothing back.

    *rate_law* and *watts_law* are the fitted coefficients: `ramp`s against caps, `pace` and `volts`
    against clocks (nan: not measured). *bend* is what `Speed` misses at each batch size. *first* to
    *last* was measured.
    """

    batch: Floats
    knob: Floats = field(repr=False)
    rate: Floats = field(repr=False)
    watts: Floats = field(repr=False)
    bend: Floats
    rate_law: Floats
    watts_law: Floats
    first: float
    last: float
    names: tuple[tuple[str, ...], tuple[str, ...]]  # of the coefficients of either law

    @property
    def metered(self) -> bool:
        """Whether watts were measured along with the speed."""
        return not bool(np.isnan(self.watts_law).any())

    def at(self, batch: Floats, knob: Floats) -> tuple[Floats, Floats]:
        """Rate and watts of a GPU at a local *batch* and a *knob*; a knob that is nan holds nothing back."""
        first, last = self.knob[0], self.knob[-1]
        # Of nan and the last, fmin takes the last: a knob that is not set holds nothing back.
        place = (np.maximum(np.fmin(knob, last), first) - first) * ((_KNOTS - 1) / (last - first))
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

    def by_watts(self) -> Curves:
        """The same against watts as the knob: the largest setting that draws no more rules."""
        first, last = float(self.watts.min()), float(self.watts.max())
        limit = np.linspace(first, max(last, 1.001 * first), _KNOTS)
        rate = np.array([np.interp(limit, w, r) for w, r in zip(self.watts, self.rate, strict=True)])
        watts = np.array([np.clip(limit, w[0], w[-1]) for w in self.watts])
        return replace(self, knob=limit, rate=rate, watts=watts)

    def by_rate(self, knob: Floats, rate: Floats, least_w: Floats) -> Curves:
        """The same against another *knob*, evenly spaced, of which only the *rate* is known, 1 at its end.

        Watts are those of the setting that is as fast, and at least *least_w*.
        """
        rates = rate * self.rate[:, -1:]
        drawn = [np.interp(r, known, w) for r, known, w in zip(rates, self.rate, self.watts, strict=True)]
        return replace(self, knob=knob, rate=rates, watts=np.maximum(drawn, least_w))

    def bent(self, bend: Floats) -> Curves:
        """The same curves with the rates of each batch size multiplied."""
        return replace(self, rate=self.rate * bend[:, None], bend=self.bend * bend)


@dataclass(frozen=True)
class _Law:
    """An equation with its fit."""

    at: Callable[..., Floats]
    fit: Callable[[Floats, Floats, Floats], Floats]
    names: tuple[str, ...]


_RAMP = _Law(ramp.ramp, ramp.fit_ramp, ramp.COEFFICIENTS)
_PACE = _Law(pace.pace, pace.fit_pace, pace.COEFFICIENTS)
_VOLTS = _Law(volts.clock_watts, volts.fit_volts, volts.COEFFICIENTS)


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
    curves = caps_from_laws(*_fitted(batch, cap_w, samples_s, watts, noise, _RAMP, _RAMP))
    return _corrected(curves, batch, cap_w, watts, _halfway)


def fit_clocks(
    batch: Floats,
    clock_mhz: Floats,
    samples_s: Floats,
    watts: Floats,
    noise: Floats,
    shape: tuple[float, float] | None = None,
) -> Curves:
    """Curves against clocks, one per local *batch*: of speeds in any unit, and watts of one GPU or nan.

    *shape* is the knee and the rise of the voltage, where other jobs have told them.
    """
    draws = replace(_VOLTS, fit=partial(volts.fit_volts, shape=shape))
    curves = clocks_from_laws(*_fitted(batch, clock_mhz, samples_s, watts, noise, _PACE, draws))
    return _corrected(curves, batch, clock_mhz, watts, _through)


def caps_from_laws(
    batch: Floats, first: float, last: float, bend: Floats, rate_law: Floats, watts_law: Floats | None
) -> Curves:
    """Curves against caps from their coefficients, a row per batch size; None: no watts were measured."""
    return _tabulated(batch, first, last, bend, rate_law, watts_law, _RAMP, _RAMP)


def clocks_from_laws(
    batch: Floats, first: float, last: float, bend: Floats, rate_law: Floats, watts_law: Floats | None
) -> Curves:
    """Curves against clocks from their coefficients, a row per batch size; None: no watts were measured."""
    return _tabulated(batch, first, last, bend, rate_law, watts_law, _PACE, _VOLTS)


def _tabulated(
    batch: Floats,
    first: float,
    last: float,
    bend: Floats,
    rate_law: Floats,
    watts_law: Floats | None,
    rates: _Law,
    draws: _Law,
) -> Curves:
    if watts_law is None:
        watts_law = np.full((len(batch), len(draws.names)), np.nan)
    knob = np.linspace(first / REACH, last, _KNOTS)
    rate = np.array([b * rates.at(knob, *law) for b, law in zip(bend, rate_law, strict=True)])
    watts = np.array([draws.at(knob, *law) for law in watts_law])
    return Curves(
        batch=batch,
        knob=knob,
        rate=np.maximum(rate, _LEAST_RATE),
        watts=watts,
        bend=bend,
        rate_law=rate_law,
        watts_law=watts_law,
        first=first,
        last=last,
        names=(rates.names, draws.names),
    )


def _fitted(
    batch: Floats, knob: Floats, samples_s: Floats, watts: Floats, noise: Floats, rates: _Law, draws: _Law
) -> tuple[Floats, float, float, Floats, Floats, Floats | None]:
    """What curves are made of; rates are 1 at the largest knob of each batch size."""
    sizes = np.unique(batch)
    bend, rate_law, watts_law = np.ones(len(sizes)), [], []
    for row, size in enumerate(sizes):
        timed = (batch == size) & ~np.isnan(samples_s)
        metered = (batch == size) & ~np.isnan(watts)
        relative = samples_s[timed] / samples_s[timed].max()
        law = rates.fit(*_thinned(knob[timed], relative, noise[timed]))
        bend[row] = 1.0 / float(rates.at(knob[timed].max(), *law))
        rate_law.append(law)
        even = np.full(np.count_nonzero(metered), _NOISE)
        watts_law.append(draws.fit(*_thinned(knob[metered], watts[metered], even)) if len(even) else None)
    known = np.array([row for row, law in enumerate(watts_law) if law is not None])
    # A size without watts draws what the nearest size with watts does.
    nearest = [int(known[np.argmin(np.abs(known - row))]) for row in range(len(sizes) if len(known) else 0)]
    drawn = np.array([watts_law[row] for row in nearest]) if nearest else None
    return sizes, float(knob.min()), float(knob.max()), bend, np.array(rate_law), drawn


def _thinned(knob: Floats, values: Floats, noise: Floats) -> tuple[Floats, Floats, Floats]:
    """Means of neighbours where there are more points than a law can use."""
    if len(knob) <= _POINTS:
        return knob, values, noise
    parts = np.array_split(np.argsort(knob), _POINTS)
    knob, values, noise = (np.array([a[part].mean() for part in parts]) for a in (knob, values, noise))
    return knob, values, noise


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
