"""Choice of a power cap or a clock from measurements: a setting that was not measured must earn it.

The best measured setting is known to be good. A setting between measured ones is chosen only if its
predicted gain exceeds the model's own error: that of predictions for measured settings which were left out
of the fit. `check_law` states in addition whether the law of caps or clocks fits the measurements at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.errors import ConfigError, ModelError
from wattline.measurement.merge import merged, with_batches
from wattline.measurement.points import Profile
from wattline.models.fit import fit_workload
from wattline.models.library import reload_coefficients

KNOB_WORDS = {"cap_w": ("cap", "W"), "clock_mhz": ("clock", "MHz")}
"""Name and unit of each knob for reports."""

CostFunction = Callable[[Floats, Floats, Floats], Floats]
"""Cost of settings from their values, samples per second and watts; inf: not allowed."""

_MAX_STEPS_OFF = 2.0  # of the cheapest setting, up to which a law fits
_NEARLY_EQUAL = 1.25  # errors of law and lines up to this ratio count as equal
_NOISE = 0.01  # relative errors that measurements have themselves
_FEW = 5  # settings to which a law is fitted for its check
_MAX_FOLDS = 12  # settings left out in turn, at most


class SettingChoice(NamedTuple):
    """A chosen setting: *value* of *knob*.

    *best_measured* is the cheapest measured value, *candidate* the cheapest by prediction. *gain* is the
    predicted relative gain of the candidate over the best measured one, *error* the model's own error of
    costs, nan: too few settings were measured to know it. *law_fits* is False if the measurements contradict
    the law by which the candidate was predicted.
    """

    knob: str
    value: float
    best_measured: float
    candidate: float
    gain: float
    error: float
    law_fits: bool = True

    @property
    def is_measured(self) -> bool:
        """True if the chosen value was measured."""
        return self.value == self.best_measured

    def __str__(self) -> str:
        name, unit = KNOB_WORDS[self.knob]
        text = f"{name} {self.value:g} {unit}"
        error = "unknown" if np.isnan(self.error) else f"{100 * self.error:.1f} %"
        gain = f"{100 * self.gain:.1f} %"
        if not self.is_measured:
            return f"{text}, not measured: {gain} better than the best measured, own error {error}"
        if self.candidate == self.best_measured:
            return f"{text}, measured; nothing between the measured ones is predicted to be better"
        reason = (
            f"which is within the model's own error ({error})"
            if not self.gain > self.error
            else f"by a {name} law that does not fit the measurements"
        )
        return f"{text}, measured; {self.candidate:g} {unit} is predicted {gain} better, {reason}"


@dataclass(frozen=True)
class LawCheck:
    """Comparison of the law of one knob with the measurements.

    The law is fitted to five of the *settings*, or to all but one if there are few, and compared with the
    others. *law_error* and *lines_error* are the mean relative errors of the energy of a sample there, by the
    law and by lines of speed and power between the neighbours. *steps_off* is the distance in measured
    settings between the cheapest one and the one that the law takes for it, and *loss* the energy that this
    costs; nan: too few settings.
    """

    knob: str
    settings: int
    law_error: float
    lines_error: float
    steps_off: float
    loss: float

    @property
    def fits(self) -> bool:
        """True unless the measurements contradict the law."""
        is_off = self.law_error > max(_NEARLY_EQUAL * self.lines_error, _NOISE)
        return not (self.steps_off > _MAX_STEPS_OFF or is_off)

    def __str__(self) -> str:
        name, _ = KNOB_WORDS[self.knob]
        error = (
            f"energy {100 * self.law_error:.1f} % off at other {name}s"
            f" (lines between them: {100 * self.lines_error:.1f} %)"
        )
        steps = (
            ""
            if np.isnan(self.steps_off)
            else f", its cheapest {name} {self.steps_off:g} steps off, which costs {100 * self.loss:.1f} %"
        )
        if self.fits:
            return f"the {name} law fits: {error}{steps}"
        return f"the {name} law does not fit: {error}{steps}; choose a measured {name}"


def choose_setting(
    rows: Profile, knob: str, cost: CostFunction, candidates: Floats | None = None
) -> SettingChoice:
    """Choose the cheapest value of *knob* for the workload, batch size and GPUs of *rows*.

    *candidates* may be chosen besides the measured values; None: every whole value between them.
    """
    rows = _take_metered(rows, knob)
    values = getattr(rows, knob)
    measured_cost = cost(values, rows.samples_s, rows.watts)
    if not np.isfinite(measured_cost).any():
        raise ConfigError(f"no measured {KNOB_WORDS[knob][0]} meets the aim")
    best = int(np.argmin(measured_cost))
    if candidates is None:
        candidates = np.arange(np.ceil(values[0]), np.floor(values[-1]) + 1.0)
    inside = candidates[(candidates > values[0]) & (candidates < values[-1])]
    inside = inside[~np.isin(inside, values)]
    found = float(values[best])
    known = SettingChoice(knob, found, found, found, 0.0, _cross_validate_cost(rows, knob, cost))
    if not len(inside) or len(values) < 3:
        return known
    predicted_cost = _predict_cost(rows, rows, knob, cost, inside)
    cheapest = int(np.argmin(predicted_cost))
    gain = 1.0 - float(predicted_cost[cheapest] / measured_cost[best])
    if not gain > 0:
        return known
    law_fits = check_law(rows, knob, only_metered=True).fits
    known = known._replace(candidate=float(inside[cheapest]), gain=gain, law_fits=law_fits)
    return known._replace(value=known.candidate) if law_fits and gain > known.error else known


def check_law(profile: Profile, knob: str, *, only_metered: bool = False) -> LawCheck:
    """Compare the law of *knob* with the measurements of one workload; raise `ModelError` if it has none.

    The batch size and number of GPUs with the most settings is taken, unless *only_metered* rows are given.
    """
    rows = profile if only_metered else _take_metered(profile, knob)
    values, energy_j = getattr(rows, knob), rows.watts / rows.samples_s
    count = len(values)
    if count < _FEW + 2:  # too few to leave some out together
        known = [np.arange(count) != left_out for left_out in range(1, count - 1) if count > 3]
    else:
        known = [np.isin(np.arange(count), _spread(count, _FEW))]
    errors, lines_errors, steps_off, loss = [], [], np.nan, np.nan
    for seen in known:
        law_j = _predict_cost(rows.take(seen), rows, knob, _energy, values, by_law=True)
        samples_s, watts = _interpolate(rows.take(seen), knob, values)
        errors += list(np.abs(law_j / energy_j - 1.0)[~seen])
        lines_errors += list(np.abs(watts / samples_s / energy_j - 1.0)[~seen])
        if count >= _FEW + 2:
            cheapest = int(np.argmin(law_j))
            steps_off = float(abs(cheapest - int(np.argmin(energy_j))))
            loss = float(energy_j[cheapest] / energy_j.min() - 1.0)
    return LawCheck(knob, count, _mean(errors), _mean(lines_errors), steps_off, loss)


def _take_metered(profile: Profile, knob: str) -> Profile:
    """Return the rows of the setting of other knobs with the most values of *knob*, by ascending value."""
    other = "clock_mhz" if knob == "cap_w" else "cap_w"
    rows = merged(with_batches(profile))
    known = ~np.isnan(getattr(rows, knob)) & np.isnan(getattr(rows, other))
    rows = rows.take(known & ~np.isnan(rows.samples_s) & ~np.isnan(rows.watts) & (rows.fuse == 1))
    if not len(rows):
        raise ModelError(f"no {KNOB_WORDS[knob][0]} was measured with speed and watts")
    groups = np.column_stack([rows.gpus, rows.nodes, np.nan_to_num(rows.batch, nan=-1.0)])
    _, group, count = np.unique(groups, axis=0, return_inverse=True, return_counts=True)
    rows = rows.take(group.reshape(-1) == int(np.argmax(count)))
    rows = rows.take(np.argsort(getattr(rows, knob), kind="stable"))
    _, first = np.unique(getattr(rows, knob), return_index=True)
    return rows.take(first)


def _cross_validate_cost(rows: Profile, knob: str, cost: CostFunction) -> float:
    """Return the root mean square relative error of costs at inner settings left out in turn."""
    values, errors = getattr(rows, knob), []
    inner = np.arange(1, len(values) - 1)
    for left_out in inner[_spread(len(inner), _MAX_FOLDS)] if len(inner) else ():
        keep = np.arange(len(values)) != left_out
        one = rows.take(~keep)
        truth = cost(values[~keep], one.samples_s, one.watts)
        if np.isfinite(truth).all() and np.count_nonzero(keep) > 1:
            predicted = _predict_cost(rows.take(keep), rows, knob, cost, values[~keep])
            if np.isfinite(predicted).all():
                errors.append(float(predicted[0] / truth[0] - 1.0))
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else np.nan


def _predict_cost(
    known: Profile, like: Profile, knob: str, cost: CostFunction, values: Floats, *, by_law: bool = False
) -> Floats:
    """Return the cost at *values* by a fit to the rows *known*; other knobs are those of the rows *like*.

    With *by_law* the measurements do not correct the laws.
    """
    settings = like.settings.take(np.zeros(len(values), dtype=np.int64))
    settings = type(settings)(**{**vars(settings), knob: values})
    fitted = fit_workload(known)
    predicted = (reload_coefficients(fitted) if by_law else fitted).extrapolate(settings)
    return cost(values, predicted.samples_s, predicted.watts)


def _interpolate(rows: Profile, knob: str, values: Floats) -> tuple[Floats, Floats]:
    """Return samples per second and watts by lines between the neighbours."""
    known = getattr(rows, knob)
    return np.interp(values, known, rows.samples_s), np.interp(values, known, rows.watts)


def _energy(values: Floats, samples_s: Floats, watts: Floats) -> Floats:
    return watts / samples_s


def _spread(count: int, chosen: int) -> Ints:
    """Return at most *chosen* indices of *count*, evenly spread, both ends included."""
    return np.unique(np.round(np.linspace(0, count - 1, min(chosen, count))).astype(np.int64))


def _mean(errors: list[float]) -> float:
    return float(np.mean(errors)) if errors else np.nan
