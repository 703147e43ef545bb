"""How far off predictions are at points that the fit has not seen."""

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


class HeldOut(NamedTuple):
    """Relative errors, one per measurement that was left out and could be predicted; nan: it could not."""

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
        """Largest relative error of samples_s; nan: nothing could be left out."""
        return _largest(self.samples)

    @property
    def watts_worst(self) -> float:
        """Largest relative error of watts."""
        return _largest(self.watts)


def held_out(profile: Profile, fit: Callable[[Profile], Workload] = fit_workload) -> HeldOut:
    """Leave out each setting of one workload in turn (of many settings, a twentieth at a time)."""
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
            continue  # the rest says nothing about this one
        samples[left_out] = np.abs(predicted.samples_s / rows.samples_s[left_out] - 1.0)
        if model.metered:
            watts[left_out] = np.abs(predicted.watts / rows.watts[left_out] - 1.0)
    return HeldOut(samples, watts)


def _mean(errors: Floats) -> float:
    seen = errors[~np.isnan(errors)]
    return float(np.mean(seen)) if len(seen) else np.nan


def _largest(errors: Floats) -> float:
    seen = errors[~np.isnan(errors)]
    return float(np.max(seen)) if len(seen) else np.nan
