"""Fits a profile file and reports the errors of each fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wattline.measurement.merge import AGREE, merged
from wattline.measurement.points import Profile, read_profile
from wattline.models.fit import fit, fit_workload, split_workloads
from wattline.models.held_out import HeldOutErrors, cross_validate
from wattline.models.library import reload_coefficients
from wattline.models.setting_choice import LawCheck, check_law
from wattline.models.workload import Workload


class FittedWorkload(NamedTuple):
    """A fitted workload with its rows, its cross-validation errors, and the checks of its laws."""

    workload: Workload
    rows: Profile
    held_out: HeldOutErrors
    laws: tuple[LawCheck, ...] = ()

    @property
    def contradictions(self) -> list[str]:
        """Descriptions of the rows that disagree with the fit, worst first."""
        known = merged(self.rows)
        laws = reload_coefficients(self.workload)  # the fit itself passes through measured speeds
        predicted = self.workload.extrapolate(known.settings)
        predicted = predicted._replace(samples_s=laws.extrapolate(known.settings).samples_s)
        far = []
        for name, values, fitted in (
            ("samples_s", known.samples_s, predicted.samples_s),
            ("watts", known.watts, predicted.watts if self.workload.metered else known.watts),
        ):
            off = np.nan_to_num(np.maximum(values / fitted, fitted / values), nan=1.0)
            far += [
                (
                    float(off[row]),
                    f"{known.path.word(row)}:{known.line[row]}: {name} is {values[row]:.4g},"
                    f" the fit predicts {fitted[row]:.4g}",
                )
                for row in np.flatnonzero(off > AGREE).tolist()
            ]
        return [text for _, text in sorted(far, reverse=True)]

    def __str__(self) -> str:
        off = (
            ("samples/s", self.held_out.samples_error, self.held_out.samples_worst),
            ("watts", self.held_out.watts_error, self.held_out.watts_worst),
        )
        texts = [
            f"{name} {100 * mean:.1f} % off on average, {100 * worst:.1f} % at worst"
            for name, mean, worst in off
            if math.isfinite(mean)
        ]
        return "; ".join(texts) or "too few points to leave any out"


def fit_file(path: str) -> Iterator[FittedWorkload]:
    """Fit every workload of a CSV file of measurements; their source is the name of the file.

    Where the law of caps or clocks does not fit, measured settings are joined by lines.
    """
    profile = read_profile(path)
    models = fit(profile)
    for found, rows in zip(models.workloads, split_workloads(profile), strict=True):
        laws = _check_laws(found, rows)
        misfits = tuple(law.knob for law in laws if not law.fits)
        if misfits:
            found = fit_workload(rows, lines=misfits)
        held = cross_validate(rows, partial(fit_workload, lines=misfits))
        source = replace(
            found.source,
            name=Path(path).name.removesuffix(".gz").removesuffix(".csv"),
            samples_error=held.samples_error,
            watts_error=held.watts_error,
            misfits=misfits,
        )
        yield FittedWorkload(replace(found, source=source), rows, held, laws)


def _check_laws(w: Workload, rows: Profile) -> tuple[LawCheck, ...]:
    """Return the checks of the laws of those knobs that were measured with watts at several settings."""
    measured = {"cap_w": w.throttle.caps, "clock_mhz": w.throttle.clocks}
    checks = (check_law(rows, k) for k, curves in measured.items() if curves is not None and curves.metered)
    return tuple(check for check in checks if math.isfinite(check.law_error))
