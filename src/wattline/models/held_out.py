"""Cross-validation: prediction errors at settings left out of the fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats
from wattline.errors import ModelError
from wattline.measurement.merge import merged
from wattline.measurement.points import Profile
from wattline.models.fit import fit_workload
from wattline.models.workload import Workload

_FOLDS = 20


class HeldOutErrors(NamedTuple):
    """Relative errors, one per measurement left out; nan: it could not be predicted."""

    samples: Floats
    watts: Floats

    @property
    def samples_error(self) -> float:
        """Mean relative error of samples_s; nan: too few measurements to leave any out."""
        return _mean(self.samples)

    @property
    def watts_error(self) -> float:
        """Mean relative error of watts."""
        return _mean(self.watts)

    @property
    def samples_worst(self) -> float:
        """Largest relative error of samples_s; nan: too few measurements to leave any out."""
        return _max(self.samples)

    @property
    def watts_worst(self) -> float:
        """Largest relative error of watts."""
        return _max(self.watts)


def cross_validate(profile: Profile, fit: Callable[[Profile], Workload] = fit_workload) -> HeldOutErrors:
    """Cross-validate one workload: leave out each setting in turn, or a twentieth if there are over 40."""
    rows = merged(profile)
    count = len(rows)
    folds = np.arange(count) % min(count, _FOLDS) if count > 2 * _FOLDS else np.arange(count)
    samples, watts = np.full(count, np.nan), np.full(count, np.nan)
    for fold in range(folds.max() + 1):
        left_out = folds == fold
        try:
            model = fit(rows.take(~left_out))
            predicted = model.extrapolate(rows.settings.take(left_out))
        except ModelError:
            continue  # the remaining rows cannot predict this setting
        samples[left_out] = np.abs(predicted.samples_s / rows.samples_s[left_out] - 1.0)
        if model.metered:
            watts[left_out] = np.abs(predicted.watts / rows.watts[left_out] - 1.0)
    return HeldOutErrors(samples, watts)


def _mean(errors: Floats) -> float:
    known = errors[~np.isnan(errors)]
    return float(np.mean(known)) if len(known) else np.nan


def _max(errors: Floats) -> float:
    known = errors[~np.isnan(errors)]
    return float(np.max(known)) if len(known) else np.nan
