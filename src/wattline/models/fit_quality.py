"""How far can the fit of a profile be trusted?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wattline.measurement.merge import AGREE, merged
from wattline.measurement.points import Profile, read_profile
from wattline.models.fit import fit, workloads
from wattline.models.held_out import HeldOut, held_out
from wattline.models.workload import Workload


class Fitted(NamedTuple):
    """A workload, the rows it was fitted to, and its errors at rows that were left out."""

    workload: Workload
    rows: Profile
    held: HeldOut

    @property
    def contradicted(self) -> list[str]:
        """The rows that the fit itself is far from, worst first: they do not go together with the others."""
        known = merged(self.rows)
        said = self.workload.extrapolate(known.settings)
        far = []
        for name, values, fitted in (
            ("samples_s", known.samples_s, said.samples_s),
            ("watts", known.watts, said.watts if self.workload.metered else known.watts),
        ):
            off = np.nan_to_num(np.maximum(values / fitted, fitted / values), nan=1.0)
            far += [
                (
                    float(off[row]),
                    f"{known.path.word(row)}:{known.line[row]}: {name} is {values[row]:.4g},"
                    f" the fit says {fitted[row]:.4g}",
                )
                for row in np.flatnonzero(off > AGREE).tolist()
            ]
        return [text for _, text in sorted(far, reverse=True)]

    def __str__(self) -> str:
        off = (
            ("samples/s", self.held.samples_error, self.held.samples_worst),
            ("watts", self.held.watts_error, self.held.watts_worst),
        )
        said = [
            f"{name} {100 * mean:.1f} % off on average, {100 * worst:.1f} % at worst"
            for name, mean, worst in off
            if math.isfinite(mean)
        ]
        return "; ".join(said) or "too few points to leave any out"


def fit_file(path: str) -> Iterator[Fitted]:
    """Every workload in a CSV of measurements; the file's name is their source."""
    profile = read_profile(path)
    models = fit(profile)
    for found, rows in zip(models.workloads, workloads(profile), strict=True):
        held = held_out(rows)
        source = replace(
            found.source,
            name=Path(path).name.removesuffix(".gz").removesuffix(".csv"),
            samples_error=held.samples_error,
            watts_error=held.watts_error,
        )
        yield Fitted(replace(found, source=source), rows, held)
