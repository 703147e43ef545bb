"""Fit every published workload and write src/wattline/models/library.toml.

Reads measurements under $WATTLINE_DATA (default ../shared/data). Only coefficients leave this script, with
the source, the number of points and the held-out error of the predictions of the file itself.

    python benchmarks/fit_library.py > src/wattline/models/library.toml
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import published

from wattline import Profile
from wattline.errors import NotFitted
from wattline.models.fit import fit_workload
from wattline.models.held_out import cross_validate
from wattline.models.library import format_models, reload_coefficients
from wattline.models.power.throttle import Throttle
from wattline.models.speed import Speed
from wattline.models.workload import MeasurementSource, Workload

HEADER = """\
# Fitted workloads: made by benchmarks/fit_library.py from published measurements, coefficients only.
# points: measurements behind an entry. *_error: mean relative error at points that the fit had not seen.
# measured: the least and the most of each knob (batch, cpus and mem_gib per GPU). Where a model was measured
# by several sources on one kind of GPU, the first is found by its name alone, all by "source/name".
# cap_w, clock_mhz: a row per local batch size. Against caps, rate and watts are ramps (low, slope, start,
# end, soft; models/power/soft_ramp.py); against clocks, rate is fixed, work, top, soft (clock_speed.py) and
# watts are still, per_mhz, knee, rise (clock_power.py). bend corrects the speed model at a batch size.
"""
SOURCES = ("zeus", "elasticflow", "perseus", "gavel", "pollux", "synergy")


def main() -> None:
    fitted = [entry for source in SOURCES for entry in fit_source(source)]
    print(HEADER)
    print(format_models(fitted), end="")


def fit_source(source: str) -> Iterator[Workload]:
    for profile in getattr(published, f"read_{source}")():
        try:
            found = fit_and_reload(profile)
        except NotFitted:
            found = build_constant(profile)  # one measurement: a speed, but no knob
        errors = cross_validate(profile, fit_and_reload)
        where = MeasurementSource(source, len(profile), errors.samples_error, errors.watts_error)
        print(f"{source} {found.model} {found.gpu} {where}", file=sys.stderr)
        yield replace(found, source=where)


def fit_and_reload(profile: Profile) -> Workload:
    """Return the fit as it is read back from the file."""
    return reload_coefficients(fit_workload(profile))


def build_constant(profile: Profile) -> Workload:
    """Return a workload of constant speed, from one measurement."""
    gpu = profile.gpu.word(0)
    speed = Speed(sample_s=float(profile.settings.local_batch[0] * profile.gpus[0] / profile.samples_s[0]))
    throttle = Throttle(gpu, np.ones(1), np.full(1, np.nan))
    return Workload(profile.model.word(0), gpu, speed, throttle, usual_batch=float(profile.batch[0]))


if __name__ == "__main__":
    main()
