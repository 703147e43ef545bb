"""Speed and watts of a GPU against one knob, a power cap or a clock: fitted laws in lookup tables.

A law is fitted per measured local batch size and tabulated at evenly spaced knob values, so that a
prediction is a table lookup for every law. Between batch sizes the interpolation is linear in the logarithm
of the size.

*Deviates:* rates and watts of a fit (not of the library, which holds coefficients only) are corrected by
the measurements: the law is scaled to pass through them, so that between two measured settings the inverse
of the time of a step is interpolated and the law gives only its curvature. The watts under a cap, which
scatter more, are the mean of the law and of lines between the measurements, which over many choices of caps
was better on average than either alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.models.power import clock_power, clock_speed, soft_ramp

EXTRAPOLATION_FACTOR = 2.0
"""Factor beyond the measured range up to which predictions are allowed, for every knob that was varied."""

_KNOTS = 257
_LEAST_RATE = 1e-3
_NOISE = 0.01  # relative, of watts
_MAX_POINTS = 64


@dataclass(frozen=True, eq=False)
class Curves:
    """Tables of *rate* and *watts* of one GPU at each *knob* value, one row per local *batch* size.

    The rate is relative to `Speed` and near 1 at the *last* knob value, from which on nothing is limited.

    *rate_law* and *watts_law* are the fitted coefficients: `soft_ramp` against caps, `clock_rate` and
    `clock_watts` against clocks (nan: not measured). *bend* is the correction of `Speed` at each batch size.
    *first* to *last* is the measured range of the knob.
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
    names: tuple[tuple[str, ...], tuple[str, ...]]  # of the coefficients of the rate law and the watts law

    @property
    def metered(self) -> bool:
        """True if watts were measured along with the speed."""
        return not bool(np.isnan(self.watts_law).any())

    def at(self, batch: Floats, knob: Floats) -> tuple[Floats, Floats]:
        """Return rate and watts of a GPU at a local *batch* and a *knob* value; knob nan: unlimited."""
        first, last = self.knob[0], self.knob[-1]
        # fmin ignores nan, so an unset knob becomes the last value: unlimited.
        place = (np.maximum(np.fmin(knob, last), first) - first) * ((_KNOTS - 1) / (last - first))
        left = np.minimum(place.astype(np.int64), _KNOTS - 2)
        share = place - left
        if len(self.batch) == 1:
            return _interpolate(self.rate[0], left, share), _interpolate(self.watts[0], left, share)
        row, mix = locate_in_log_intervals(self.batch, batch)
        left += _KNOTS * row
        here = left, left + 1, left + _KNOTS, left + _KNOTS + 1
        both = mix * share
        weights = 1.0 - share - mix + both, share - both, mix - both, both

        def interpolate(table: Floats) -> Floats:
            corners = [table.take(index) * weight for index, weight in zip(here, weights, strict=True)]
            return np.asarray(corners[0] + corners[1] + corners[2] + corners[3])

        return interpolate(self.rate), interpolate(self.watts)

    def against_watts(self) -> Curves:
        """Return the curves against a limit in watts: the largest setting that draws no more applies."""
        first, last = float(self.watts.min()), float(self.watts.max())
        limit = np.linspace(first, max(last, 1.001 * first), _KNOTS)
        rate = np.array([np.interp(limit, w, r) for w, r in zip(self.watts, self.rate, strict=True)])
        watts = np.array([np.clip(limit, w[0], w[-1]) for w in self.watts])
        return replace(self, knob=limit, rate=rate, watts=watts)

    def against_rate(self, knob: Floats, rate: Floats, least_w: Floats) -> Curves:
        """Return the curves against another evenly spaced *knob* with known *rate*, 1 at its end.

        Watts are those of the setting with the same rate, and at least *least_w*.
        """
        scaled = rate * self.rate[:, -1:]
        rising = np.maximum.accumulate(self.rate, axis=1)  # measured rates scatter
        watts = [np.interp(r, known, w) for r, known, w in zip(scaled, rising, self.watts, strict=True)]
        return replace(self, knob=knob, rate=scaled, watts=np.maximum(watts, least_w))

    def scale_rates(self, bend: Floats) -> Curves:
        """Return the curves with the rates of each batch size multiplied by *bend*."""
        return replace(self, rate=self.rate * bend[:, None], bend=self.bend * bend)


def pass_through_rates(curves: Curves, batch: Floats, knob: Floats, rate: Floats) -> Curves:
    """Return *curves* with rates scaled to pass through the measured ones.

    *batch*, *knob* and *rate* have a value per measurement; a batch size with one knob value is left alone.
    """
    table = curves.rate.copy()
    for row, positions, means in _group_measurements(curves, batch, knob, rate):
        table[row] = _scale_to_measured(curves.knob, table[row], positions, means)
    return replace(curves, rate=table)


def follow_lines(curves: Curves, batch: Floats, knob: Floats, rate: Floats, watts: Floats) -> Curves:
    """Return *curves* as lines between the measured settings, for GPUs that the laws do not fit.

    Outside the measured range the laws continue. Watts rise with the knob, as those of all curves do.
    """
    tables = curves.rate.copy(), curves.watts.copy()
    for table, measured in zip(tables, (rate, watts), strict=True):
        for row, positions, means in _group_measurements(curves, batch, knob, measured):
            inside = (curves.knob >= positions[0]) & (curves.knob <= positions[-1])
            scaled = _scale_to_measured(curves.knob, table[row], positions, means)
            table[row] = np.where(inside, np.interp(curves.knob, positions, means), scaled)
    return replace(curves, rate=tables[0], watts=np.maximum.accumulate(tables[1], axis=1))


def _group_measurements(
    curves: Curves, batch: Floats, knob: Floats, values: Floats
) -> Iterator[tuple[int, Floats, Floats]]:
    """Yield the row of each batch size with several knob values, these values, and the mean at each."""
    for row, size in enumerate(curves.batch):
        here = np.flatnonzero((batch == size) & ~np.isnan(values))
        positions, group = np.unique(knob[here], return_inverse=True)
        if len(positions) > 1:
            means = np.bincount(group.reshape(-1), values[here]) / np.bincount(group.reshape(-1))
            positions, means, _ = _average_neighbours(positions, means, means)
            yield row, positions, means


@dataclass(frozen=True)
class _Law:
    """An equation, the function that fits it, and the names of its coefficients."""

    at: Callable[..., Floats]
    fit: Callable[[Floats, Floats, Floats], Floats]
    names: tuple[str, ...]


_CAP_LAW = _Law(soft_ramp.soft_ramp, soft_ramp.fit_soft_ramp, soft_ramp.COEFFICIENTS)
_CLOCK_RATE_LAW = _Law(clock_speed.clock_rate, clock_speed.fit_clock_rate, clock_speed.COEFFICIENTS)
_CLOCK_WATTS_LAW = _Law(clock_power.clock_watts, clock_power.fit_clock_watts, clock_power.COEFFICIENTS)


def locate_in_log_intervals(known: Floats, values: Floats) -> tuple[Ints, Floats]:
    """Return the interval of *known* that holds each of *values*, and the log position in it, 0 to 1."""
    if len(known) == 1:
        return np.zeros(len(values), dtype=np.int64), np.zeros(len(values))
    positions, at = np.log(known), np.log(values)
    left = np.clip(np.searchsorted(positions, at, side="right") - 1, 0, len(known) - 2)
    return left, np.clip((at - positions[left]) / np.diff(positions)[left], 0.0, 1.0)


def _interpolate(table: Floats, left: Ints, share: Floats) -> Floats:
    low = table.take(left)
    return np.asarray(low + share * (table.take(left + 1) - low))


def fit_caps(batch: Floats, cap_w: Floats, samples_s: Floats, watts: Floats, noise: Floats) -> Curves:
    """Fit curves against caps, one per local *batch*, to speeds in any unit and watts of one GPU or nan."""
    curves = caps_from_laws(*_fit_laws(batch, cap_w, samples_s, watts, noise, _CAP_LAW, _CAP_LAW))
    return _correct_watts(curves, batch, cap_w, watts, _average_with_measured)


def fit_clocks(
    batch: Floats,
    clock_mhz: Floats,
    samples_s: Floats,
    watts: Floats,
    noise: Floats,
    shape: tuple[float, float] | None = None,
) -> Curves:
    """Fit curves against clocks, one per local *batch*, to speeds in any unit and watts of one GPU or nan.

    *shape* is the knee and the rise of the voltage, if they are known from other workloads.
    """
    watts_equation = replace(_CLOCK_WATTS_LAW, fit=partial(clock_power.fit_clock_watts, shape=shape))
    curves = clocks_from_laws(
        *_fit_laws(batch, clock_mhz, samples_s, watts, noise, _CLOCK_RATE_LAW, watts_equation)
    )
    return _correct_watts(curves, batch, clock_mhz, watts, _scale_to_measured)


def caps_from_laws(
    batch: Floats, first: float, last: float, bend: Floats, rate_law: Floats, watts_law: Floats | None
) -> Curves:
    """Build curves against caps from their coefficients, a row per batch size; None: no watts."""
    return _tabulate_laws(batch, first, last, bend, rate_law, watts_law, _CAP_LAW, _CAP_LAW)


def clocks_from_laws(
    batch: Floats, first: float, last: float, bend: Floats, rate_law: Floats, watts_law: Floats | None
) -> Curves:
    """Build curves against clocks from their coefficients, a row per batch size; None: no watts."""
    return _tabulate_laws(batch, first, last, bend, rate_law, watts_law, _CLOCK_RATE_LAW, _CLOCK_WATTS_LAW)


def _tabulate_laws(
    batch: Floats,
    first: float,
    last: float,
    bend: Floats,
    rate_law: Floats,
    watts_law: Floats | None,
    rate_equation: _Law,
    watts_equation: _Law,
) -> Curves:
    if watts_law is None:
        watts_law = np.full((len(batch), len(watts_equation.names)), np.nan)
    knob = np.linspace(first / EXTRAPOLATION_FACTOR, last, _KNOTS)
    rate = np.array([b * rate_equation.at(knob, *law) for b, law in zip(bend, rate_law, strict=True)])
    watts = np.array([watts_equation.at(knob, *law) for law in watts_law])
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
        names=(rate_equation.names, watts_equation.names),
    )


def _fit_laws(
    batch: Floats,
    knob: Floats,
    samples_s: Floats,
    watts: Floats,
    noise: Floats,
    rate_equation: _Law,
    watts_equation: _Law,
) -> tuple[Floats, float, float, Floats, Floats, Floats | None]:
    """Fit both laws at each batch size; return the arguments of `caps_from_laws` and `clocks_from_laws`.

    Rates are 1 at the largest knob value of each batch size.
    """
    sizes = np.unique(batch)
    bend, rate_law, watts_law = np.ones(len(sizes)), [], []
    for row, size in enumerate(sizes):
        timed = (batch == size) & ~np.isnan(samples_s)
        metered = (batch == size) & ~np.isnan(watts)
        relative = samples_s[timed] / samples_s[timed].max()
        law = rate_equation.fit(*_average_neighbours(knob[timed], relative, noise[timed]))
        bend[row] = 1.0 / float(rate_equation.at(knob[timed].max(), *law))
        rate_law.append(law)
        even = np.full(np.count_nonzero(metered), _NOISE)
        watts_law.append(
            watts_equation.fit(*_average_neighbours(knob[metered], watts[metered], even))
            if len(even)
            else None
        )
    known = np.array([row for row, law in enumerate(watts_law) if law is not None])
    # A size without watts takes the law of the nearest size with watts.
    nearest = [int(known[np.argmin(np.abs(known - row))]) for row in range(len(sizes) if len(known) else 0)]
    laws = np.array([watts_law[row] for row in nearest]) if nearest else None
    return sizes, float(knob.min()), float(knob.max()), bend, np.array(rate_law), laws


def _average_neighbours(knob: Floats, values: Floats, noise: Floats) -> tuple[Floats, Floats, Floats]:
    """Average neighbouring points down to `_MAX_POINTS`."""
    if len(knob) <= _MAX_POINTS:
        return knob, values, noise
    parts = np.array_split(np.argsort(knob), _MAX_POINTS)
    knob, values, noise = (np.array([a[part].mean() for part in parts]) for a in (knob, values, noise))
    return knob, values, noise


def _correct_watts(
    curves: Curves,
    batch: Floats,
    knob: Floats,
    watts: Floats,
    correct: Callable[[Floats, Floats, Floats, Floats], Floats],
) -> Curves:
    """Return *curves* with watts corrected by the measurements and rising with the knob."""
    table = curves.watts.copy()
    for row, size in enumerate(curves.batch):
        here = np.flatnonzero((batch == size) & ~np.isnan(watts))
        if len(here):
            order = here[np.argsort(knob[here])]
            table[row] = correct(curves.knob, table[row], knob[order], watts[order])
    return replace(curves, watts=np.maximum.accumulate(table, axis=1))


def _average_with_measured(knob: Floats, law: Floats, positions: Floats, measured: Floats) -> Floats:
    """Return the mean of *law* and of lines between the *measured* points, made to rise with the knob."""
    rising = _average_rising(measured)
    inside = np.clip(knob, positions[0], positions[-1])
    # Outside the measured range the law continues from the end of the mean.
    return np.asarray(law + 0.5 * (np.interp(inside, positions, rising) - np.interp(inside, knob, law)))


def _average_rising(measured: Floats) -> Floats:
    """Return *measured* made to rise: the mean of the least curve above it and the largest below."""
    above, below = np.maximum.accumulate(measured), np.minimum.accumulate(measured[::-1])[::-1]
    return np.asarray(0.5 * (above + below))


def _scale_to_measured(knob: Floats, law: Floats, positions: Floats, measured: Floats) -> Floats:
    """Return *law* scaled to pass through the *measured* points."""
    return np.asarray(law * np.interp(knob, positions, measured / np.interp(positions, knob, law)))
